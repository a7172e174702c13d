"""TRL's own trainers beside ours: options that keep them comparable, and the comparison of one update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

STOCK: dict[str, Any] = {
    "seed": 0,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
}


def require_same_update(
    ours: Any,
    stock: Any,
    start: Mapping[str, torch.Tensor],
    *,
    least: float,
    tolerance: float = 1e-6,
) -> None:
    """Train both and see that they moved `start` alike.

    Args:
        least: what the largest change must exceed.
        tolerance: largest difference, as a part of the largest change.
    """
    for trainer in (ours, stock):
        trainer.train()
    after, wanted = ours.model.state_dict(), stock.model.state_dict()
    moved = max(float((wanted[name] - start[name]).abs().max()) for name in start)
    assert moved > least
    for name in start:
        assert torch.allclose(after[name], wanted[name], rtol=0, atol=tolerance * moved)
