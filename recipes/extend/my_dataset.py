"""A dataset: a function that returns or yields rows, which are maps of columns."""

from __future__ import annotations

import random
from collections.abc import Iterator


def sums(rows: int = 8, seed: int = 0) -> Iterator[dict[str, object]]:
    """Sums of two digits. `terms`, neither prompt nor answer, becomes each task's metadata."""
    draw = random.Random(seed)  # noqa: S311 - the same rows for every run
    for _ in range(rows):
        left, right = draw.randint(1, 9), draw.randint(1, 9)
        question = f"How many are {left} and {right}?"
        yield {"question": question, "answer": str(left + right), "terms": [left, right]}
