"""Measures of a sampler: lags and reuse of trained groups, and counts of groups by what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean

from rft_data.core.facts import lag_histograms
from rft_data.core.groups import GroupResult
from rft_data.core.words import BurnCause
from rft_data.sampler.policy import Candidate


class Gauges:
    """Counts of closed tickets and settled leases since the start; lags since the last reading."""

    def __init__(self) -> None:
        self._dispatched: Counter[str] = Counter()
        self._trained: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._lags: Counter[tuple[int, int]] = Counter()
        """Groups trained for the first time, by lag in flight and in queue."""
        self._reused_ages: list[int] = []
        """Ages of groups trained again, in optimizer steps."""
        self._stale_tokens = 0
        self._uses = 0
        """Groups trained since the last reading, for the first time or again."""

    def closed(self, result: GroupResult) -> None:
        """Count a closed ticket, whatever its outcome."""
        self._dispatched[result.task.taskset] += 1
        if result.dropped_by and not result.seqs:
            self._dropped[result.dropped_by] += 1

    def expired(self, candidates: Iterable[Candidate]) -> None:
        """Count the tokens of groups that grew too old before they were trained."""
        self._stale_tokens += sum(candidate.result.tokens for candidate in candidates)

    def trained(self, candidates: Iterable[Candidate]) -> None:
        """Count groups that were trained for the first time."""
        self._trained.update(c.result.task.taskset for c in candidates if c.uses == 0)

    def used(self, candidates: Iterable[Candidate], step: int) -> None:
        """Count the lags of groups trained at optimizer step `step`; groups of other runs have none."""
        for candidate in candidates:
            self._uses += 1
            if candidate.uses:
                self._reused_ages.append(step - (candidate.step or 0))
            elif candidate.step is not None:
                self._lags[candidate.arrived_step - candidate.step, step - candidate.arrived_step] += 1

    def read(self) -> dict[str, float]:
        """Lags (optimizer steps) and reuse of groups trained since the last reading; counts since the start.

        Of a first use `lag_in_flight/N` until arrival, `lag_in_queue/N` after it, `lag/N` both, `lag_mean`,
        `lag_max`; where groups were trained again, `reused_share` of all, `reused_age_mean` and
        `reused_age_max`; `burned_tokens/stale`, sampled tokens of groups that became stale since the last
        reading, where there were any (without groups that an earlier start closed); `dropped/OPERATOR`,
        `dispatched/TASKSET` and `trained/TASKSET` in groups.
        """
        pairs = list(self._lags.elements())
        self._lags.clear()
        arrived = [in_flight for in_flight, _ in pairs]
        found = lag_histograms([0] * len(pairs), arrived, [sum(pair) for pair in pairs])
        if ages := self._reused_ages:
            found["reused_share"] = len(ages) / self._uses
            found["reused_age_mean"], found["reused_age_max"] = fmean(ages), float(max(ages))
        self._reused_ages, self._uses = [], 0
        if self._stale_tokens:
            found[f"burned_tokens/{BurnCause.STALE}"] = float(self._stale_tokens)
        self._stale_tokens = 0
        for name, counts in (
            ("dropped", self._dropped),
            ("dispatched", self._dispatched),
            ("trained", self._trained),
        ):
            found |= {f"{name}/{key}": float(count) for key, count in sorted(counts.items())}
        return found
