"""The accounting of a stored run: its rollouts by state, for each consumer, from the tables alone."""

from __future__ import annotations

import json
from typing import Any

from rft_data.buffer import Buffer
from rft_data.core.filters import Compare
from rft_data.sampler.conservation import Conservation, conservation
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.sampler.make import make_policy
from rft_data.sampler.mixed_in import mixed_in


def accounts(buffer: Buffer, run_id: str) -> dict[str, Conservation]:
    """Rollouts of a run by state, for each consumer; for the trainer where none has begun.

    Groups that its sampler mixes in, of other runs and of its experts, are counted with its own.

    It reads every rollout of the run and every verdict of the buffer: about a second for 100,000 rows.
    """
    use, args = _sampler(buffer, run_id)
    ledger = Ledger(buffer, run_id, 0, max_uses=make_policy(use, args).max_uses)
    others = mixed_in(run_id, use, args)
    return {one: conservation(buffer, ledger, one, others) for one in ledger.consumers() or [CONSUMER]}


def _sampler(buffer: Buffer, run_id: str) -> tuple[str, dict[str, Any]]:
    """The run's own sampler policy with its arguments; `fifo` for a run whose recipe is not stored."""
    stored = buffer.read("runs", ["recipe"], Compare("run_id", "eq", run_id)).column("recipe").to_pylist()
    sampler = json.loads(stored[-1]).get("sampler") if stored else None
    return (sampler["use"], sampler["args"]) if sampler else ("fifo", {})
