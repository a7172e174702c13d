"""Rows that a model cannot read, of another tokenizer or too long: torch would fail in mid training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from transformers import AutoConfig

from rft_data.core.errors import RowError, TrainingError
from rft_data.core.model_folder import most_positions


def check_positions(model: Path, lengths: Iterable[int], cut: int | None = None) -> None:
    """See that a model has a position for every token of its rows.

    Args: lengths: tokens of each row. cut: rows are cut to so many tokens; None: they are not.
    Raises: TrainingError where it has not.
    """
    most = most_positions(model)
    if most is None or (cut is not None and cut <= most):
        return
    if longer := [length for length in lengths if length > most]:
        raise TrainingError(
            f"{len(longer)} rows have more tokens (up to {max(longer)}) than the model '{model}' has "
            f"positions ({most}); give the stage trl: {{max_length: {most}}} (sft cuts longer rows there, "
            "other stages leave them out), choose shorter rows, or take another model. No step was taken."
        )


def require_vocabulary(model: Path, table: pa.Table) -> None:
    """Raise a RowError when a stored id is beyond the model's vocabulary: another tokenizer made it."""
    size = AutoConfig.from_pretrained(model).get_text_config().vocab_size
    highest = pc.max(pc.list_flatten(table["token_ids"])).as_py()
    if highest is not None and highest >= size:
        raise RowError(
            f"stored rows have token id {highest}, and the model {model} knows {size} tokens: another "
            "tokenizer made them. Train the model that sampled them, or filter them out ('where')."
        )
