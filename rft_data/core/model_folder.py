"""Facts about a model, read from the files of its folder; no model library is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rft_data.core.canonical import content_id
from rft_data.core.errors import IntegrityError

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Files of a model folder that say how images become tensors; a model has some of them."""

_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model*",
    "vocab*",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "*tekken*.json",
)
"""Patterns of the files of which a tokenizer has at least one."""
_WITHOUT_FILE = ("ByT5", "Canine", "Perceiver")
"""Beginnings of the classes of tokenizers that have none: their tokens are bytes or characters."""
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""Keys of a config under which vLLM looks for the longest sequence; the least of them counts."""
_SCALED = ("su", "longrope", "llama3", "deepseek_llama_scaling")
"""Kinds of rotary embeddings whose factor is in those lengths already."""
_PARTLY_SCALED = ("yarn", "deepseek_yarn")
"""Kinds whose factor is in them or not, as the model's makers had it."""

_NUMBERED = ("biogpt", "codegen", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "openai-gpt", "opt")
"""Types of models with a table of positions: one beyond its end is an error of torch."""


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


def has_tokenizer(folder: Path) -> bool:
    """Whether a model folder has the files of a tokenizer, or names one that needs none."""
    if any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
        return True
    config = _read(folder / "tokenizer_config.json")
    return "auto_map" in config or str(config.get("tokenizer_class", "")).startswith(_WITHOUT_FILE)


def longest_sequence(folder: Path) -> int | None:
    """Most tokens of a sequence of the model in a folder, as vLLM has it; None where its config is silent."""
    whole = _read(folder / "config.json")
    config = whole.get("text_config", whole)
    if not isinstance(config, dict):
        return None
    found = [one for key in _LENGTHS if isinstance(one := config.get(key), int) and one > 0]
    if isinstance(own := config.get("model_max_length"), int):
        found = [own]
    return int(max(_scaled(config, min(found)))) if found else None


def most_positions(folder: Path) -> int | None:
    """Length of the table of positions of the model in a folder; None where it computes them."""
    numbered = _read(folder / "config.json").get("model_type") in _NUMBERED
    return longest_sequence(folder) if numbered else None


def _scaled(config: dict[str, Any], length: int) -> Iterator[float]:
    """The length with the factor of every kind of layer's rotary embeddings."""
    yield length
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for one in rope.values() if all(isinstance(one, dict) for one in rope.values()) else (rope,):
        factor = one.get("factor")
        kind = one.get("rope_type", one.get("type"))
        if not isinstance(factor, int | float) or kind in _SCALED or "gemma3" in config.get("model_type", ""):
            continue
        yield factor * (
            one.get("original_max_position_embeddings", length) if kind in _PARTLY_SCALED else length
        )


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty without the file. Raises: IntegrityError for another content."""
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as err:
        raise IntegrityError(f"{path} is not JSON ({err}); copy it again from where the model is.") from err
    if not isinstance(found, dict):
        raise IntegrityError(f"{path} holds a {type(found).__name__}, not an object; copy it again.")
    return found
