"""Where tests find GSM8K: the full data where it is, else the hand-written sample that is shipped."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "recipes" / "samples"
"""24 questions and 48 solutions in GSM8K's format."""


def _full() -> Path | None:
    named = os.environ.get("RFT_GSM8K_DIR")
    beside = ROOT.parent / "shared" / "data" / "gsm8k"
    if named:
        return Path(named)
    return beside if beside.is_dir() else None


FULL = _full()
"""The full data: `RFT_GSM8K_DIR`, or `shared/data/gsm8k` beside the checkout."""
FOLDER = FULL or SAMPLE
needs_full = pytest.mark.skipif(
    FULL is None,
    reason="a statistic of all of GSM8K; to run them: set RFT_GSM8K_DIR to a folder with GSM8K's test.jsonl "
    "and example_model_solutions.jsonl",
)


def solutions(questions: int) -> list[dict[str, Any]]:
    """The first questions with two models' solutions each; the sample has 24."""
    with (FOLDER / "example_model_solutions.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(questions), strict=False)]
