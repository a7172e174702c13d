"""First admitted, first trained, each group once: no group overtakes another."""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.rows import GroupResult
from rft_data.sampler.books import Books, Versions
from rft_data.sampler.group_sampler import GroupSampler
from rft_data.sampler.windowed import Windowed


def fifo() -> Windowed:
    """Order of admission, without overtaking."""
    return Windowed(window=0)


class Fifo(GroupSampler):
    """A sampler with the policy `fifo`, for callers without a recipe."""

    def __init__(
        self,
        ledger: Books,
        versions: Versions,
        *,
        consumer: str,
        groups_per_step: int,
        max_staleness: int | None,
        history: Sequence[GroupResult] = (),
        settled_steps: int = 0,
    ) -> None:
        """The arguments are those of `GroupSampler`."""
        super().__init__(
            fifo(),
            ledger=ledger,
            versions=versions,
            consumer=consumer,
            groups_per_step=groups_per_step,
            max_staleness=max_staleness,
            history=history,
            settled_steps=settled_steps,
        )
