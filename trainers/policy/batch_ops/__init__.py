"""Advantage functions over a whole lease, by name: whitening, batch scale, critics, penalties by token.

`make_batch_ops([{kl_penalty: {coef: 0.01}}, {gae: {lam: 0.95}}, {whiten: {}}])` checks and binds a list.
Advantages that need only their group are operators of the pipeline (`ops/advantages/`).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.batch_ops.bind import BatchOpSpec, bind
from trainers.policy.batch_ops.distill import DISTILL, JSD
from trainers.policy.batch_ops.gae import GAE, RETURNS_TO_GO
from trainers.policy.batch_ops.kl_penalty import KL_PENALTY
from trainers.policy.batch_ops.scale import BATCH_STD, WHITEN
from trainers.policy.batch_ops.state import BatchState

__all__ = ["BATCH_OPS", "BatchOp", "BatchState", "make_batch_ops"]

BATCH_OPS: dict[str, BatchOp] = {
    "batch_std": BATCH_STD,
    "distill": DISTILL,
    "gae": GAE,
    "jsd": JSD,
    "kl_penalty": KL_PENALTY,
    "returns_to_go": RETURNS_TO_GO,
    "whiten": WHITEN,
}
"""Every batch operator, by the name that a stage's `batch_ops` gives."""


def make_batch_ops(specs: Sequence[BatchOpSpec]) -> tuple[BatchOp, ...]:
    """The operators of a stage's `batch_ops`, checked, in their order, with their arguments bound.

    Their `needs` are what the batch must have: without what every batch has or an earlier operator sets.

    Raises: UnknownComponentError, RecipeError (see `trainers.policy.batch_ops.bind.bind`).
    """
    return bind(specs, BATCH_OPS)
