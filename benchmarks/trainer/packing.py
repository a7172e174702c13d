"""Tokens a second of supervised training on rows of unequal length, padded and packed, by `train_sft`.

Packed rows are only worth measuring where a row sees no other: before, one update over the same rows is made
both ways, and its loss must be the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.trainer.case import SEED, TOKENS, Case, experiences

WAYS: Mapping[str, Mapping[str, Any]] = {
    "padded": {"per_device_train_batch_size": 8},
    "packed": {"per_device_train_batch_size": 2, "packing": True, "max_length": 2 * TOKENS},
}
"""About the same number of tokens in an optimizer step."""
_CHECKED = 6
"""Rows of the comparison; packed, they fill two sequences."""
_TOLERANCE = 1e-4


def ragged(rows: int) -> pa.Table:
    """Rows of 16 to 256 tokens, a quarter of each a prompt."""
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(16, TOKENS + 1, rows)
    return experiences(
        {
            "seq": row,
            "prompt_length": length // 4,
            "token_ids": rng.integers(5, 200, length).tolist(),
            "action_mask": (np.arange(length) >= length // 4).astype(int).tolist(),
        }
        for row, length in enumerate(lengths.tolist())
    )


def tokens_per_s(case: Case, rows: int, way: str) -> float:
    """Tokens of the rows, padding not counted, over the seconds of training on each of them once."""
    table = ragged(rows)
    tokens: int = pc.sum(pc.list_value_length(table["token_ids"])).as_py()
    return tokens / _trained(case, table, WAYS[way])["wall_s"]


def obstacle(case: Case) -> str:
    """Reason why packed rows are not what they are alone on this device; empty when they are."""
    table = ragged(_CHECKED)
    alone, packed = (
        _trained(case, table, {**options, "per_device_train_batch_size": _CHECKED})["loss_first"]
        for options in WAYS.values()
    )
    if abs(alone - packed) <= _TOLERANCE * alone:
        return ""
    return f"rows see each other: the loss is {packed:.4f} packed and {alone:.4f} alone"


def _trained(case: Case, table: pa.Table, options: Mapping[str, Any]) -> Mapping[str, float]:
    from trainers.offline.sft import train_sft

    fixed = {"num_train_epochs": 1, "learning_rate": 1e-6}
    with tempfile.TemporaryDirectory() as folder:
        fitted = train_sft(case.model, table, Path(folder), options={**fixed, **options}, seed=SEED)
    return fitted.metrics
