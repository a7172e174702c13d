"""The hosts that a run would contact."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rft_data.core.hub_cache import is_hub_id
from rft_data.recipe.recipe import Recipe
from rft_data.recipe.task_sources import HuggingFaceTasks, ModelScopeTasks

HUB_HOST = "huggingface.co"
_MODELSCOPE_HOST = "www.modelscope.cn"
_TRACKERS = {
    "clearml": ("api.clear.ml", "CLEARML_API_HOST"),
    "comet_ml": ("www.comet.com", "COMET_URL_OVERRIDE"),
    "dagshub": ("dagshub.com", "DAGSHUB_CLIENT_HOST"),
    "mlflow": ("", "MLFLOW_TRACKING_URI"),
    "neptune": ("app.neptune.ai", ""),
    "swanlab": ("api.swanlab.cn", "SWANLAB_API_HOST"),
    "wandb": ("api.wandb.ai", "WANDB_BASE_URL"),
}
"""Trackers that send to a host unless told to stay offline: it, and the variable that names another."""
_LOCAL = ("file", "hf", "modelscope", "")
"""Schemes of URLs without a host; `_datasets` looks at those of the hub (`hf`)."""


def contacts(recipe: Recipe) -> dict[str, str]:
    """The reasons to contact each host, by host; the values of environment references are not shown."""
    found: dict[str, str] = {}
    for place, value in _texts(recipe.model_dump(mode="json"), ""):
        parts = urlsplit(value) if "://" in value else None
        if parts is not None and parts.scheme not in _LOCAL and (host := _host(parts.scheme, parts.netloc)):
            found.setdefault(host, place)
    model = getattr(recipe, "model", None)
    explorer = getattr(recipe, "explorer", None)
    served_here = explorer is None or explorer.base_url is None
    if served_here and model is not None and model.path and is_hub_id(model.path):
        found[HUB_HOST] = f"model.path '{model.path}' is no folder here (unless HF_HUB_OFFLINE=1)"
    for host, why in _datasets(recipe):
        found.setdefault(host, why)
    monitor = getattr(recipe, "monitor", None)
    for tracker in monitor.trackers if monitor is not None else ():
        host, variable = _TRACKERS.get(tracker, ("", ""))
        given = urlsplit(os.environ.get(variable, ""))
        if place := _host(given.scheme, given.netloc) or host:
            found[place] = f"monitor.trackers '{tracker}' (unless it is set to offline)"
    return found


def _sources(recipe: Recipe) -> Iterator[object]:
    """Everything that tasks, rollouts and imports are read from."""
    for key in ("tasks", "rollouts", "imports"):
        yield from (one.source for one in getattr(recipe, key, []))


def _datasets(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Host and name of each dataset that is fetched."""
    for source in _sources(recipe):
        if isinstance(source, ModelScopeTasks):
            yield _MODELSCOPE_HOST, f"the dataset '{source.path}'"
        elif isinstance(source, HuggingFaceTasks) and not Path(source.path).exists():
            yield HUB_HOST, f"the dataset '{source.path}' (unless HF_HUB_OFFLINE=1)"
    for path in (one.path or "" for one in getattr(recipe, "imports", [])):
        if path.startswith("modelscope://"):
            yield _MODELSCOPE_HOST, f"the dataset '{path}'"
        elif path.startswith("hf://"):
            yield HUB_HOST, f"the dataset '{path}' (unless HF_HUB_OFFLINE=1)"


def _host(scheme: str, netloc: str) -> str:
    """The host of a URL without user and password; the bucket of an object store."""
    host = netloc.rpartition("@")[2]
    return f"{scheme}://{host}" if scheme in ("s3", "gs", "az") else host


def _texts(node: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _texts(value, f"{place}.{name}" if place else str(name))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _texts(value, f"{place}.{number}")
    elif isinstance(node, str):
        yield place, node
