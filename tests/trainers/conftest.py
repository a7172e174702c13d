"""A tiny model folder and hand-made leased rows for the trainers' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rft_data.core.groups import Lease
from rft_data.core.protocols import LeasedBatch
from rft_data.core.schema import EXPERIENCES
from trainers.models.tiny_model import build_tiny_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return build_tiny_model(folder, seed=3, hidden_size=64, num_layers=2, num_heads=2, intermediate_size=128)


@pytest.fixture(scope="session")
def rows_table() -> Callable[..., pa.Table]:
    """n rows of random ids: unequal prompts and completions, environment tokens inside the completions.

    Stored logprobs are near those of a uniform policy, so the tiny model's ratios differ from 1 and
    some are clipped. The last `empty_rows` rows have no completion.
    """

    def build(seed: int, n: int, *, per_token: bool = False, empty_rows: int = 0) -> pa.Table:
        rng = np.random.default_rng(seed)
        rows: list[dict[str, Any]] = []
        for i in range(n):
            prompt = int(rng.integers(1, 8))
            total = prompt + (0 if i >= n - empty_rows else int(rng.integers(3, 17)))
            mask = (np.arange(total) >= prompt) & (rng.random(total) < 0.8)
            rows.append(
                {
                    "seq": i,
                    "group_id": f"run/g-{i // 2}",
                    "prompt_length": prompt,
                    "token_ids": rng.integers(5, 100, total).tolist(),
                    "action_mask": mask.astype(int).tolist(),
                    "logprobs": (-5.5 + rng.normal(0, 0.3, total)).tolist(),
                    "advantage": rng.normal(size=total if per_token and i % 2 else 1).tolist(),
                    "reward": float(rng.random()),
                    "version_min": i % 3,
                }
            )
        advantage = pa.field("advantage", pa.list_(pa.float32()))
        fields = [advantage if name == advantage.name else EXPERIENCES.field(name) for name in rows[0]]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields))

    return build


@pytest.fixture(scope="session")
def replace_column() -> Callable[[pa.Table, str, Sequence[Any]], pa.Table]:
    """The table with one column's values replaced, its type kept."""

    def replace(table: pa.Table, name: str, values: Sequence[Any]) -> pa.Table:
        at = table.schema.get_field_index(name)
        kind = table.schema.field(at).type
        return table.set_column(at, pa.field(name, kind), pa.array(values, kind))

    return replace


@pytest.fixture(scope="session")
def leased() -> Callable[[pa.Table, int], LeasedBatch]:
    """The table as the lease of one step."""

    def wrap(table: pa.Table, step: int) -> LeasedBatch:
        seqs = tuple(range(table.num_rows))
        return LeasedBatch(Lease("trainer", step, 0, step, seqs, ("group-a", "group-b"), "digest"), table)

    return wrap
