"""What a sampler measures: lag in flight and in queue, ages, drops, trained against dispatched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rft_data.core.facts import lag_histograms
from rft_data.core.rows import GroupResult
from rft_data.sampler.policy import Candidate


class Gauges:
    """Counts that grow with closes and settled leases; lags start anew with every reading."""

    def __init__(self) -> None:
        self._dispatched: Counter[str] = Counter()
        self._trained: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._lags: Counter[tuple[int, int]] = Counter()
        """Groups by lag in flight and in queue."""

    def closed(self, result: GroupResult) -> None:
        """A ticket came home, whatever its outcome."""
        self._dispatched[result.task.taskset] += 1
        if result.dropped_by and not result.seqs:
            self._dropped[result.dropped_by] += 1

    def trained(self, candidates: Iterable[Candidate]) -> None:
        """Groups were trained; only the first time counts."""
        self._trained.update(c.result.task.taskset for c in candidates if c.uses == 0)

    def used(self, candidates: Iterable[Candidate], step: int) -> None:
        """Groups were trained, again or not, at optimizer step `step`; those of other runs have no lag."""
        for candidate in candidates:
            if candidate.step is not None:
                self._lags[candidate.arrived_step - candidate.step, step - candidate.arrived_step] += 1

    def read(self) -> dict[str, float]:
        """Groups by lag (optimizer steps) of the steps since the last reading; the rest since the start.

        `lag_in_flight/N` until arrival, `lag_in_queue/N` from there, `lag/N` both, `lag_mean`, `lag_max`;
        `dropped/OPERATOR`, `dispatched/TASKSET` and `trained/TASKSET` in groups.
        """
        pairs = list(self._lags.elements())
        self._lags.clear()
        arrived = [in_flight for in_flight, _ in pairs]
        found = lag_histograms([0] * len(pairs), arrived, [sum(pair) for pair in pairs])
        for name, counts in (
            ("dropped", self._dropped),
            ("dispatched", self._dispatched),
            ("trained", self._trained),
        ):
            found |= {f"{name}/{key}": float(count) for key, count in sorted(counts.items())}
        return found
