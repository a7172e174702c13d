"""How long prompts and completions of a new recipe may be, so that they fit into its model."""

from __future__ import annotations

from collections.abc import Mapping

from rft_data.core.hub_cache import local_folder
from rft_data.core.model_folder import longest_sequence

_USUAL = 2048
"""Tokens of a prompt and its completion together, where the model takes so many."""
TINY_MODEL = f"{{build: {{use: tiny_qwen2, max_position_embeddings: {_USUAL}}}}}"
"""The model of a recipe that names none: most of its tokens are one byte, so prompts are long."""


def engine_lengths(model: str) -> Mapping[str, str]:
    """The marks of a skeleton for the engine's length and its longest completion, and their values (tokens).

    Args: model: a folder, or a hub id, whose config says how much it takes if it is on this disk.
    Raises: IntegrityError for a config that cannot be read.
    """
    folder = local_folder(model)
    longest = None if folder is None else longest_sequence(folder)
    length = min(_USUAL, longest or _USUAL)
    return {"__LENGTH__": str(length), "__COMPLETION__": str(length // 2)}
