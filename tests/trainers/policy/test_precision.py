"""Options of TRL that trade memory for time or precision reach the step, and change no more than they may."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from rft_data.core.protocols import LeasedBatch
from rft_data.core.schema import EXPERIENCES
from trainers.offline.sft import train_sft
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan, Limits

Rows = Callable[..., pa.Table]
Leased = Callable[[pa.Table, int], LeasedBatch]


def _update(model_path: Path, out: Path, batch: LeasedBatch, options: dict[str, Any]) -> torch.Tensor:
    """The parameters' change in one step, flat."""
    plain = {"learning_rate": 0.5, "optim": "sgd", "max_grad_norm": 0.0, "beta": 0.1}
    with closing(
        GrpoTrainer(GrpoPlan(model_path, out, 1, 8, {**plain, **options}, 0, limits=Limits(threads=1)))
    ) as trainer:
        trainer.step(batch)
        (out / "w").mkdir(parents=True)
        trainer.save_weights(out / "w")
    before, after = load_file(model_path / "model.safetensors"), load_file(out / "w" / "model.safetensors")
    return torch.cat([(after[name].float() - before[name].float()).flatten() for name in sorted(before)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"gradient_checkpointing": True}, 1e-6),
        ({"bf16": True}, 0.05),
        ({"bf16": True, "gradient_checkpointing": True}, 0.05),
    ],
    ids=["checkpointing", "bf16", "both"],
)
def test_update_is_that_of_float32_without_checkpointing(
    model_path: Path,
    tmp_path: Path,
    rows_table: Rows,
    leased: Leased,
    options: dict[str, Any],
    tolerance: float,
) -> None:
    batch = leased(rows_table(0, 8), 0)
    want = _update(model_path, tmp_path / "plain", batch, {})
    got = _update(model_path, tmp_path / "changed", batch, options)
    off = float((got - want).norm() / want.norm())
    assert off <= tolerance
    if "bf16" in options:
        assert off > 1e-4  # it was not ignored


@pytest.mark.slow
@pytest.mark.parametrize("packed", [{"padding_free": True}, {"packing": True, "max_length": 64}])
def test_rows_without_padding_see_no_other_row(
    model_path: Path, tmp_path: Path, rows_table: Rows, packed: dict[str, Any]
) -> None:
    """Without flash attention too: transformers tells packed rows apart by their positions."""
    table = pa.Table.from_pylist(rows_table(0, 12).to_pylist(), schema=EXPERIENCES)
    options = {
        "learning_rate": 0.5,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "max_steps": 1,
        "per_device_train_batch_size": 12,
    }
    updates = []
    before = load_file(model_path / "model.safetensors")
    for name, extra in (("padded", {}), ("packed", packed)):
        train_sft(model_path, table, tmp_path / name, options={**options, **extra}, seed=0)
        after = load_file(tmp_path / name / "model.safetensors")
        updates.append(torch.cat([(after[key] - before[key]).flatten() for key in sorted(before)]))
    want, got = updates
    assert float((got - want).norm() / want.norm()) <= 1e-5
