"""Exact ratios over several sources of groups in one buffer: this run, other runs, experts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from rft_data.core.errors import RecipeError
from rft_data.sampler.policy import Candidate, Moment, Policy
from rft_data.sampler.pool import Pool
from rft_data.sampler.windowed import Windowed

OWN = "own"
"""The source of this run's own groups; every other source is named by how its group ids begin."""


class Mix(Policy):
    """Each lease takes groups from every source by the ratio; remainders are carried to the next lease.

    Each group is taken from the source that is furthest behind its share, so no source is ever a whole
    group ahead. Where every share of the total is a whole number, every count equals its share exactly.
    Own groups come in order of admission, stored ones least used first.
    """

    def __init__(self, parts: Mapping[str, int], max_reuse: int = 1) -> None:
        """Args:
            parts: whole-number ratio by source, as `{"own": 3, "earlier-run/": 1}`.
            max_reuse: steps one stored group may be trained in; own groups are trained once.

        Raises: RecipeError for no parts, or for one that is not a positive whole number.
        """
        if not parts or any(not isinstance(part, int) or part < 1 for part in parts.values()):
            raise RecipeError(
                f"sampler mix: 'parts' is {dict(parts)}; give every source a whole number of at least 1, "
                "as in {own: 3, 'earlier-run/': 1}."
            )
        shared = math.gcd(*parts.values())
        self._parts = {name: part // shared for name, part in parts.items()}
        self._period = sum(self._parts.values())
        self.max_uses = max_reuse
        self._queues: dict[str, Policy] = {
            name: Windowed(window=0) if name == OWN else LeastUsed() for name in self._parts
        }
        self._taken: Counter[str] = Counter()
        period = self._next_sources(self._period)
        self._own_before = [period[:number].count(OWN) for number in range(self._period + 1)]

    def limit(self, candidate: Candidate) -> int:
        """Own groups once, stored ones as often as `max_reuse`."""
        return 1 if self._source(candidate) == OWN else self.max_uses

    def opened(self, place: int, step: int) -> None:
        """A ticket was given. Raises: RecipeError without a part for this run's groups."""
        if OWN not in self._queues:
            raise RecipeError(f"sampler mix: 'parts' has no '{OWN}', so nothing explored could be trained.")
        self._queues[OWN].opened(place, step)

    def closed(self, place: int) -> None:
        """A ticket was closed."""
        self._queues[OWN].closed(place)

    def add(self, candidate: Candidate) -> None:
        """The group may be leased. Raises: RecipeError if it is of no source."""
        self._queues[self._source(candidate)].add(candidate)

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._queues[self._source(candidate)].discard(candidate)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """Up to n groups in the exact ratio; fewer when a source has too few groups ready.

        Raises: RecipeError when a stored source is used up and no lease in flight could be released.
        """
        sources = self._next_sources(n)
        waiting = {
            name: self._queues[name].choose(wanted, moment)[::-1] for name, wanted in Counter(sources).items()
        }
        chosen: list[Candidate] = []
        for name in sources:
            if not waiting[name]:
                if name != OWN and moment.in_flight == 0:
                    raise RecipeError(self._used_up(name))
                break
            chosen.append(waiting[name].pop())
        return chosen

    def taken(self, candidates: Sequence[Candidate]) -> None:
        """These groups were leased."""
        for name, members in self._by_source(candidates).items():
            self._queues[name].taken(members)
            self._taken[name] += len(members)

    def returned(self, candidates: Sequence[Candidate]) -> None:
        """Their lease was released: they no longer count for the ratio."""
        for name, members in self._by_source(candidates).items():
            self._queues[name].returned(members)
            self._taken[name] -= len(members)

    def own_places(self, first: int, last: int, moment: Moment) -> int:
        """How many of the groups leased as number `first` to `last - 1` are this run's own."""
        return self._own_until(last) - self._own_until(first)

    def _own_until(self, number: int) -> int:
        periods, rest = divmod(number, self._period)
        return periods * self._own_before[-1] + self._own_before[rest]

    def _next_sources(self, n: int) -> list[str]:
        """The sources of the next n groups."""
        taken, total = Counter(self._taken), self._taken.total()
        sources = []
        for number in range(total + 1, total + n + 1):
            name = max(self._parts, key=lambda s: self._parts[s] * number - taken[s] * self._period)
            taken[name] += 1
            sources.append(name)
        return sources

    def _used_up(self, name: str) -> str:
        return (
            f"sampler mix: source '{name}' has no group left after {self._taken[name]} uses, at most "
            f"{self.max_uses} of each; give it more groups, a smaller part or a larger 'max_reuse'."
        )

    def _source(self, candidate: Candidate) -> str:
        if candidate.step is not None and OWN in self._parts:
            return OWN
        matching = [n for n in self._parts if n != OWN and candidate.group_id.startswith(n)]
        if not matching:
            raise RecipeError(
                f"sampler mix: group '{candidate.group_id}' belongs to no source in 'parts' "
                f"({', '.join(self._parts)}); add a source that its id begins with, or leave its run out."
            )
        return max(matching, key=len)

    def _by_source(self, candidates: Sequence[Candidate]) -> dict[str, list[Candidate]]:
        members: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            members.setdefault(self._source(candidate), []).append(candidate)
        return members


class LeastUsed(Policy):
    """Least used first, then in stored order, so that each pass over a source uses every group once."""

    def __init__(self) -> None:
        self._ready = Pool(lambda candidate: (candidate.uses, candidate.place))

    def add(self, candidate: Candidate) -> None:
        """The group may be leased."""
        self._ready.add(candidate)

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._ready.discard(candidate)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """The n least used."""
        return self._ready.first(n)
