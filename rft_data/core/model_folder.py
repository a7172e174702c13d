"""What the files of a model folder say about images; no model library is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rft_data.core.canonical import content_id

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Files of a model folder that say how images become tensors; a model has some of them."""


def takes_images(folder: Path) -> bool:
    """Whether the model in a folder looks at images: its configuration has a vision tower."""
    return "vision_config" in _read(folder / "config.json")


def processor_hash(folder: Path) -> str:
    """Content hash of how the model's images become tensors and placeholders."""
    return content_id([[name, _read(folder / name)] for name in PROCESSOR_FILES[:2]])


def placeholder_id(folder: Path) -> int | None:
    """The token id that stands for a piece of an image in a prompt; None if the model has none."""
    config = _read(folder / "config.json")
    found: int | None = config.get("image_token_id", config.get("image_token_index"))
    return found


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found
