"""A batch operator as recipes name it: its function, its source, what it needs and what it sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainers.policy.batch_ops.state import BatchState


@dataclass(frozen=True, slots=True)
class BatchOp:
    """An advantage function over a whole lease, which a stage's `batch_ops` can name.

    `function(state, **args)` returns a new BatchState.
    """

    function: Callable[..., BatchState]
    paper: str
    """arXiv id, or another source."""
    needs: frozenset[str] = frozenset()
    """Those of `prox`, `ref`, `values`, `rewards` and `token_rewards` it reads, `advantages` where an
    operator must have set them, and `teacher` where `ref` must be another model's."""
    sets: frozenset[str] = frozenset({"advantages"})
    """Those of `advantages`, `returns` and `token_rewards` it writes."""
    formula: str = ""
    """Its effect, in the symbols of docs/algorithms.md."""
