"""Rows that are longer than a model's table of positions: torch would fail in the middle of training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rft_data.core.errors import TrainingError
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
