"""Trackers are fed beside the run: one that fails or cannot keep up is named once, and left out from then on.

A tracker never ends the run, nor holds it up.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rft_data.run.watch.samples import Sample

log = logging.getLogger(__name__)

_BACKLOG = 1000
"""Points that may wait for a slow tracker of a run's steps."""
_PATIENCE_S = 10.0
"""Seconds that all trackers together get to finish when the run ends."""


@dataclass(frozen=True, slots=True)
class Point:
    """Figures recorded for one optimizer step."""

    step: int
    """The step, 0-based."""
    version: int
    """Newest policy version after it."""
    elapsed_s: float
    """Wall time the run has been at work, over all its starts."""
    numbers: Mapping[str, Mapping[str, float]]
    """Role to metric to value."""
    samples: Sequence[Sample] = ()
    """A few rollouts that the step trained on; not stored, as the rows are."""


class Tracker(Protocol):
    """Something outside that shows a run. Called from one thread of its own."""

    @property
    def name(self) -> str:
        """Its name in the recipe."""
        ...

    def log(self, point: Point) -> None:
        """Show one step; may raise anything."""
        ...

    def close(self) -> None:
        """The run is over; may raise anything."""
        ...


class TrackerFeed:
    """Some trackers, each fed by a thread of its own; a context manager, which lets them finish."""

    def __init__(self, trackers: Sequence[Tracker], backlog: int | None = None) -> None:
        """Start the threads. Args: backlog: points that may wait for a slow tracker; None: a thousand."""
        most = _BACKLOG if backlog is None else backlog
        self._drains = [_Drain(tracker, most) for tracker in trackers]

    def offer(self, point: Point) -> None:
        """Pass a point on to every tracker that has room for it; never waits."""
        for drain in self._drains:
            drain.offer(point)

    def close(self) -> None:
        """Let the trackers finish, for a bounded time; idempotent."""
        deadline = time.monotonic() + _PATIENCE_S
        for drain in self._drains:
            drain.finish()
        for drain in self._drains:
            drain.join(deadline)

    def __enter__(self) -> TrackerFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Drain:
    """A thread that feeds one tracker from a bounded queue until the tracker fails or falls behind."""

    def __init__(self, tracker: Tracker, backlog: int) -> None:
        self._tracker = tracker
        self._backlog = backlog
        self._points: queue.Queue[Point | None] = queue.Queue(backlog)
        self._on = True
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=f"tracker-{tracker.name}", daemon=True)
        self._thread.start()

    def offer(self, point: Point) -> None:
        """Pass a point on if there is room; never waits."""
        if not self._on:
            return
        try:
            self._points.put_nowait(point)
        except queue.Full:
            self._switch_off(f"{self._backlog} steps behind")

    def finish(self) -> None:
        """No more points will come."""
        if not self._finished:
            self._finished = True
            try:
                self._points.put_nowait(None)
            except queue.Full:
                self._switch_off(f"{self._backlog} steps behind at the end of the run")

    def join(self, deadline: float) -> None:
        """Wait for the tracker to finish, until a time.monotonic()."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and self._on:
            self._switch_off(f"not done {_PATIENCE_S:g} s after the end of the run")

    def _run(self) -> None:
        try:
            while self._on and (point := self._points.get()) is not None:
                self._tracker.log(point)
            self._tracker.close()
        except Exception as err:  # noqa: BLE001 - a tracker is other people's code: it must not end the run
            self._switch_off(f"{type(err).__name__}: {err}")

    def _switch_off(self, why: str) -> None:
        if self._on:
            self._on = False
            log.warning(
                "tracker '%s' is switched off (%s); the run goes on, and its numbers are in the buffer's "
                "'metrics' table",
                self._tracker.name,
                why,
            )
