"""Models of the Hugging Face hub as far as this disk knows them: no host is asked."""

from __future__ import annotations

import json
from pathlib import Path

from rft_data.core.errors import IntegrityError
from rft_data.core.hub_cache import cached_folder, is_hub_id, local_folder
from rft_data.run.outlook.model_config import FAMILIES, config_size
from rft_data.run.outlook.model_size import ModelSize, folder_size


def known_size(path: Path) -> ModelSize | None:
    """The size of a model in a folder, or of an id of the hub that is in its cache; None where it is neither.

    Without its weights the size is computed from its config.json, for the families of `model_config`.
    Raises: IntegrityError when a file is damaged.
    """
    folder = local_folder(str(path))
    if folder is None:
        return None
    found = folder_size(folder)
    return found if found is not None else _by_config(folder)


def config_head_size(path: str) -> int | None:
    """The size of an attention head, as the config.json of a folder or a cached model says; None without."""
    folder = local_folder(path)
    if folder is None or not (folder / "config.json").is_file():
        return None
    whole = json.loads((folder / "config.json").read_text())
    config = whole.get("text_config", whole)
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if size := config.get("head_dim"):
        return int(size)
    return int(hidden) // int(heads) if heads and hidden else None


def unknown(path: str) -> str:
    """The reason that the size of a model is not known, and how a person can make it known."""
    folder = cached_folder(path) if is_hub_id(path) else Path(path)
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
