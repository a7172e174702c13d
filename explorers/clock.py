"""Where the seconds of one rollout went: in calls of the engine, of its environment, of rewards, in waiting.

They are stored beside the rollout's last row. Calls that other asyncio tasks make for a rollout (an HTTP
server's) are not seen; all else counts as the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DIGITS = 4


class RolloutClock:
    """Wall seconds of a rollout by phase: those in which at least one of its calls was in it."""

    __slots__ = ("_began", "_entered", "_inside", "_seconds")

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._inside: Counter[str] = Counter()
        self._entered: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count the time of the block as time in `phase`."""
        if self._inside[phase] == 0:
            self._entered[phase] = time.monotonic()
        self._inside[phase] += 1
        try:
            yield
        finally:
            self._inside[phase] -= 1
            if self._inside[phase] == 0:
                spent = time.monotonic() - self._entered[phase]
                self._seconds[phase] = self._seconds.get(phase, 0.0) + spent

    def seconds(self) -> dict[str, float]:
        """`all`: since the rollout began; and of each phase that it was in. Phases may overlap."""
        whole = time.monotonic() - self._began
        return {name: round(value, _DIGITS) for name, value in {"all": whole, **self._seconds}.items()}


_RUNNING: ContextVar[RolloutClock | None] = ContextVar("clock of a rollout", default=None)


def started() -> RolloutClock:
    """A clock for the rollout that this asyncio task, and those that it starts, play from now on."""
    clock = RolloutClock()
    _RUNNING.set(clock)
    return clock


@contextmanager
def during(phase: str) -> Iterator[None]:
    """Count the time of the block for the rollout that is played here, if one is."""
    clock = _RUNNING.get()
    if clock is None:
        yield
        return
    with clock.during(phase):
        yield
