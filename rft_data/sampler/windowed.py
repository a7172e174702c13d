"""Order of admission, with a limit on how many groups may overtake a slow one.

Windowed FIFO after MiniMax (arXiv:2605.26494), with a deadline for each slow group instead of a wider
limit: a group that would be too old for the next step is not overtaken. `fifo` is the window 0.
"""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence

from rft_data.core.errors import RecipeError
from rft_data.sampler.policy import Candidate, Moment, Policy
from rft_data.sampler.pool import Pool


class Windowed(Policy):
    """Oldest admitted first; at most `window` groups admitted after an open group are leased before it."""

    def __init__(self, window: int) -> None:
        """`window` in groups. Raises: RecipeError if it is negative."""
        if window < 0:
            raise RecipeError(f"sampler windowed: 'window' is {window}; give a number of groups, 0 or more.")
        self._window = window
        self._ready = Pool(lambda candidate: candidate.place)
        self._open: OrderedDict[int, int] = OrderedDict()
        # Places of leased groups admitted after the oldest open group. A group that overtook a younger open
        # group overtook the oldest too, so it is enough to count for the oldest.
        self._overtaking: list[int] = []

    def opened(self, place: int, step: int) -> None:
        """A ticket was given."""
        self._open[place] = step

    def closed(self, place: int) -> None:
        """A ticket was closed; groups admitted after it may move up."""
        self._open.pop(place, None)
        oldest = next(iter(self._open), None)
        del self._overtaking[: len(self._overtaking) if oldest is None else bisect(self._overtaking, oldest)]

    def add(self, candidate: Candidate) -> None:
        """The group may be leased."""
        self._ready.add(candidate)

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._ready.discard(candidate)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """The oldest ready groups, up to the first that may not overtake an open group."""
        chosen: list[Candidate] = []
        stragglers = iter(self._open.items())
        straggler = next(stragglers, None)
        skipped, room = 0, self._window - len(self._overtaking)
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
        """These groups were leased; some may have overtaken an open group."""
        super().taken(candidates)
        oldest = next(iter(self._open), None)
        for candidate in candidates:
            if oldest is not None and candidate.place > oldest:
                insort(self._overtaking, candidate.place)

    def returned(self, candidates: Sequence[Candidate]) -> None:
        """Their lease was released: they no longer count as overtaking."""
        super().returned(candidates)
        for candidate in candidates:
            at = bisect_left(self._overtaking, candidate.place)
            if at < len(self._overtaking) and self._overtaking[at] == candidate.place:
                del self._overtaking[at]


def fifo() -> Windowed:
    """Order of admission, without overtaking: each group once, first admitted first."""
    return Windowed(window=0)


def _can_wait(step: int, skipped: int, moment: Moment) -> bool:
    """Whether an open group behind `skipped` other open groups is still in time if this lease goes first."""
    if moment.max_staleness is None:
        return True
    trained_at = moment.step + 1 + skipped // moment.groups_per_step
    return trained_at - step <= moment.max_staleness
