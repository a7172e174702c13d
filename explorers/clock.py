"""The seconds of one rollout by phase: calls of the engine, of its environment, of rewards, and waiting.

They are stored in the metadata of the rollout's last row. Calls that other asyncio tasks make for the rollout
(those of an HTTP server) are not measured; their time is part of no phase.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DIGITS = 4


class Phases:
    """Wall seconds by phase, counted while at least one caller is in it. Phases may overlap."""

    __slots__ = ("_entered", "_inside", "_seconds")

    def __init__(self) -> None:
        self._inside: Counter[str] = Counter()
        self._entered: dict[str, float] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

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
                self._seconds[phase] += time.monotonic() - self._entered[phase]

    def take(self, now: float) -> dict[str, float]:
        """The seconds of each phase up to `now` (monotonic time); counts from 0 afterwards."""
        for phase in +self._inside:
            self._seconds[phase] += now - self._entered[phase]
            self._entered[phase] = now
        seconds, self._seconds = self._seconds, defaultdict(float)
        return dict(seconds)


class RolloutClock:
    """The phases of one rollout, by its calls."""

    __slots__ = ("_began", "_phases", "during")

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._phases = Phases()
        self.during = self._phases.during

    def take(self) -> dict[str, float]:
        """Seconds: `all` since the rollout began, and those of each phase that it was in."""
        now = time.monotonic()
        seconds = {"all": now - self._began, **self._phases.take(now)}
        return {name: round(value, _DIGITS) for name, value in seconds.items()}


_RUNNING: ContextVar[RolloutClock | None] = ContextVar("clock of a rollout", default=None)


def started() -> RolloutClock:
    """A clock for the rollout that this asyncio task, and those that it starts, play from now on."""
    clock = RolloutClock()
    _RUNNING.set(clock)
    return clock


@contextmanager
def during(phase: str) -> Iterator[None]:
    """Count the time of the block for the rollout that this asyncio task plays, if it plays one."""
    clock = _RUNNING.get()
    if clock is None:
        yield
        return
    with clock.during(phase):
        yield
