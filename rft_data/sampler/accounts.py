"""The accounting of a stored run: its rollouts by state, for each consumer, from the tables alone."""

from __future__ import annotations

import json

from rft_data.buffer import Buffer
from rft_data.core.filters import Compare
from rft_data.sampler.conservation import Conservation, conservation
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.sampler.make import make_policy


def accounts(buffer: Buffer, run_id: str) -> dict[str, Conservation]:
    """Rollouts of a run by state, for each consumer; for the trainer where none has begun.

    It reads every rollout of the run and every verdict of the buffer: about a second for 100,000 rows.
    """
    ledger = Ledger(buffer, run_id, 0, max_uses=_max_uses(buffer, run_id))
    return {one: conservation(buffer, ledger, one) for one in ledger.consumers() or [CONSUMER]}


def _max_uses(buffer: Buffer, run_id: str) -> int:
    """How often the run's own sampler may lease a group; 1 for a run whose recipe is not stored."""
    stored = buffer.read("runs", ["recipe"], Compare("run_id", "eq", run_id)).column("recipe").to_pylist()
    sampler = json.loads(stored[-1]).get("sampler") if stored else None
    return make_policy(sampler["use"], sampler["args"]).max_uses if sampler else 1
