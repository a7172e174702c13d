"""Models of the Hugging Face hub as far as this disk knows them: no host is asked."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from rft_data.core.errors import IntegrityError
from rft_data.run.outlook.model_config import FAMILIES, config_size
from rft_data.run.outlook.model_size import ModelSize, folder_size

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_hub_id(path: str) -> bool:
    """Whether a model's path is not a folder of this machine, and has the form of an id of the hub."""
    return bool(_ID.fullmatch(path)) and not Path(path).exists()


def known_size(path: Path) -> ModelSize | None:
    """The size of a model in a folder, or of an id of the hub that is in its cache; None where it is neither.

    Without its weights the size is computed from its config.json, for the families of `model_config`.
    Raises: IntegrityError when a file is damaged.
    """
    folder = path if path.is_dir() else _cached(str(path))
    if folder is None:
        return None
    found = folder_size(folder)
    return found if found is not None else _by_config(folder)


def config_head_size(path: str) -> int | None:
    """The size of an attention head, as the config.json of a folder or a cached model says; None without."""
    folder = Path(path) if Path(path).is_dir() else _cached(path)
    if folder is None or not (folder / "config.json").is_file():
        return None
    whole = json.loads((folder / "config.json").read_text())
    config = whole.get("text_config", whole)
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if size := config.get("head_dim"):
        return int(size)
    return int(hidden) // int(heads) if heads and hidden else None


def unknown(path: str) -> str:
    """Why the size of a model is not known, and how a person can make it known."""
    folder = _cached(path) if is_hub_id(path) else Path(path)
    if folder is not None and (folder / "config.json").is_file():
        return (
            f"'{path}' has no safetensors files here, and its config.json is none of {', '.join(FAMILIES)}, "
            "whose sizes follow from it; once its weights are here it is known"
        )
    if is_hub_id(path):
        return (
            f"'{path}' is no folder here and not in the hub's cache; its config.json alone (some kB) is "
            f"enough: hf download {path} config.json"
        )
    return f"'{path}' is no folder with a model yet; once an earlier run has written it, it is known"


def _by_config(folder: Path) -> ModelSize | None:
    config = folder / "config.json"
    if not config.is_file():
        return None
    try:
        return config_size(json.loads(config.read_text()))
    except (ValueError, KeyError, TypeError) as err:
        raise IntegrityError(
            f"{config} does not say how large its model is ({type(err).__name__}: {err}); copy it again."
        ) from err


def _cached(repo: str) -> Path | None:
    """The newest snapshot of a model in the hub's cache, as `huggingface_hub` lays it out."""
    if not is_hub_id(repo):
        return None
    root = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    stored = Path(root).expanduser() / f"models--{repo.replace('/', '--')}"
    main = stored / "refs" / "main"
    named = stored / "snapshots" / main.read_text().strip() if main.is_file() else None
    if named is not None and named.is_dir():
        return named
    found = [one for one in stored.glob("snapshots/*") if one.is_dir()]
    return max(found, key=lambda one: one.stat().st_mtime, default=None)
