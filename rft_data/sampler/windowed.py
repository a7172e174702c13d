"""Order of admission, with a bound on how far a fast group may overtake a slow one.

Windowed FIFO after MiniMax (arXiv:2605.26494), with a deadline per straggler instead of a wider bound:
nothing is overtaken that would be too old for the step after. `fifo` is the window 0.
"""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence

from rft_data.core.errors import RecipeError
from rft_data.sampler.policy import Candidate, Moment, Policy
from rft_data.sampler.pool import Pool


class Windowed(Policy):
    """Oldest admitted first; an open group is passed by at most `window` groups admitted after it."""

    def __init__(self, window: int) -> None:
        """`window` in groups. Raises: RecipeError if it is negative."""
        if window < 0:
            raise RecipeError(f"sampler windowed: 'window' is {window}; give a number of groups, 0 or more.")
        self._window = window
        self._ready = Pool(lambda candidate: candidate.place)
        self._open: OrderedDict[int, int] = OrderedDict()
        # Leased groups admitted after the oldest open one. Whatever passed a younger open group passed
        # the oldest too, so the window needs to be kept for the oldest only.
        self._passed: list[int] = []

    def opened(self, place: int, step: int) -> None:
        """A ticket was given."""
        self._open[place] = step

    def closed(self, place: int) -> None:
        """A ticket was closed: who comes behind it may move up."""
        self._open.pop(place, None)
        oldest = next(iter(self._open), None)
        del self._passed[: len(self._passed) if oldest is None else bisect(self._passed, oldest)]

    def add(self, candidate: Candidate) -> None:
        """The group may be leased."""
        self._ready.add(candidate)

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._ready.discard(candidate)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """The oldest ready groups, up to the first that would pass an open one too far."""
        chosen: list[Candidate] = []
        stragglers = iter(self._open.items())
        straggler = next(stragglers, None)
        skipped, room = 0, self._window - len(self._passed)
        for candidate in self._ready.first(n):
            while straggler is not None and straggler[0] < candidate.place:
                if room <= 0 or not _can_wait(straggler[1], skipped, moment):
                    return chosen
                skipped += 1
                straggler = next(stragglers, None)
            if skipped:
                if room <= 0:
                    return chosen
                room -= 1
            chosen.append(candidate)
        return chosen

    def taken(self, candidates: Sequence[Candidate]) -> None:
        """These groups were leased; some passed an open one."""
        super().taken(candidates)
        oldest = next(iter(self._open), None)
        for candidate in candidates:
            if oldest is not None and candidate.place > oldest:
                insort(self._passed, candidate.place)

    def returned(self, candidates: Sequence[Candidate]) -> None:
        """Their lease was given back: they passed nobody."""
        super().returned(candidates)
        for candidate in candidates:
            at = bisect_left(self._passed, candidate.place)
            if at < len(self._passed) and self._passed[at] == candidate.place:
                del self._passed[at]


def _can_wait(step: int, skipped: int, moment: Moment) -> bool:
    """Whether an open group behind `skipped` others can still be trained in time if this lease goes ahead."""
    if moment.max_staleness is None:
        return True
    trained_at = moment.step + 1 + skipped // moment.groups_per_step
    return trained_at - step <= moment.max_staleness
