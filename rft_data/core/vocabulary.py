"""Whether a tokenizer has tokens at all: transformers makes an empty one of a folder without its files."""

from __future__ import annotations

from typing import Any

from rft_data.core.errors import RecipeError


def with_tokens(tokenizer: Any, model: object) -> Any:
    """The tokenizer of a model, as it is. Raises: RecipeError when it has no tokens but special ones."""
    if tokenizer("a 1", add_special_tokens=False)["input_ids"]:
        return tokenizer
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise RecipeError(
            f"model.path: the tokenizer of '{model}' has no tokens, so no prompt can be made: its files "
            "(tokenizer.json, tokenizer.model or those of a vocabulary) are not there or empty; copy them "
            "from where the model is."
        )
    return tokenizer
