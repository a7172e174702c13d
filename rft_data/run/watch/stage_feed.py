"""Trackers of an offline stage: they are shown its numbers while it trains, and what is left at its end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from rft_data.core.words import MetricRole
from rft_data.run.watch.tracker_feed import Point, Tracker, TrackerFeed
from trainers.offline.steps_taken import Steps, numbers_since, steps_taken

_BACKLOG = 2000
"""Points that may wait for a slow tracker: all that a stage keeps, and some that are still waiting."""


class StageFeed:
    """Feeds trackers one stage's numbers, each step once and in order; a context manager."""

    def __init__(self, trackers: Sequence[Tracker], stage: str, folder: Path) -> None:
        """Args: stage: its name, which the names of its numbers begin with. folder: where it trains."""
        self._feed = TrackerFeed(trackers, backlog=_BACKLOG)
        self._stage = stage
        self._folder = folder
        self._place, self._shown = 0, 0
        self._names: set[str] = set()
        self._over = False
        self._lock = threading.Lock()

    def look(self) -> Steps | None:
        """Show what the stage has written since the last look; returns its count of steps."""
        with self._lock:
            if not self._over:
                found, self._place = numbers_since(self._folder, self._place)
                for numbers in found:
                    named = {f"{self._stage}/{key}": one for key, one in numbers.items() if key != "step"}
                    self._offer(int(numbers["step"]), named)
        return steps_taken(self._folder)

    def end(self, numbers: Mapping[tuple[int, str], float]) -> None:
        """Show the steps after those that were shown, and names that were not; then look no more.

        A stage that went on from a checkpoint keeps numbers that trackers had from its earlier start.

        Args: numbers: all that the stage keeps, by (optimizer step, name).
        """
        by_step: dict[int, dict[str, float]] = {}
        for (step, name), value in numbers.items():
            by_step.setdefault(step, {})[name] = float(value)
        with self._lock:
            self._over = True
            for step, found in sorted(by_step.items()):
                self._offer(step, found)

    def _offer(self, step: int, numbers: Mapping[str, float]) -> None:
        if step <= self._shown:
            numbers = {name: value for name, value in numbers.items() if name not in self._names}
        if not numbers:
            return
        self._shown = max(step, self._shown)
        self._names.update(numbers)
        self._feed.offer(Point(step, 0, 0.0, {MetricRole.TRAINER: numbers}))

    def __enter__(self) -> StageFeed:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
        self._feed.close()
