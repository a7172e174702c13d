"""One run, two step axes: every number of every role, in the buffer's `metrics` table first.

A step's numbers are one commit. The policy version and the elapsed time of a step are numbers too (role
`loop`), so either can be the axis. Trackers come after the table and best effort: one that fails or cannot
keep up is named once and left out from then on; it never ends the run, nor holds it up.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare
from rft_data.core.words import MetricRole
from rft_data.run.watch.samples import Sample

log = logging.getLogger(__name__)

VERSION, ELAPSED_S = "policy_version", "elapsed_s"
_BACKLOG = 1000
"""Points that may wait for a slow tracker."""
_PATIENCE_S = 10.0
"""What all trackers together get to finish when the run ends."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was recorded for one optimizer step."""

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
        """What the recipe calls it."""
        ...

    def log(self, point: Point) -> None:
        """Show one step; may raise anything."""
        ...

    def close(self) -> None:
        """The run is over; may raise anything."""
        ...


class MetricsLog:
    """The run's numbers: the table, then the trackers."""

    def __init__(self, buffer: Buffer, run_id: str, trackers: Sequence[Tracker] = ()) -> None:
        """Continue the run's clock from what the table holds."""
        self._buffer = buffer
        self._run_id = run_id
        self._start = time.monotonic() - _elapsed(buffer, run_id)
        self._drains = [_Drain(tracker) for tracker in trackers]
        self.latest: Point | None = None
        """The last step recorded by this process."""

    @property
    def elapsed_s(self) -> float:
        """Wall time the run has been at work, over all its starts."""
        return time.monotonic() - self._start

    def record(
        self,
        step: int,
        version: int,
        numbers: Mapping[str, Mapping[str, float]],
        samples: Sequence[Sample] = (),
    ) -> Point:
        """Store the numbers of one step, by role, in one commit; then hand them to the trackers, and samples.

        A number that is not finite is stored as it is: that a loss was NaN is worth knowing.
        Raises: what the buffer raises.
        """
        loop = {**numbers.get(MetricRole.LOOP, {}), VERSION: float(version), ELAPSED_S: self.elapsed_s}
        plain = {role: {k: float(v) for k, v in found.items()} for role, found in numbers.items()}
        point = Point(
            step,
            version,
            loop[ELAPSED_S],
            {**plain, MetricRole.LOOP: {k: float(v) for k, v in loop.items()}},
            samples,
        )
        self._buffer.add_rows(
            "metrics",
            [
                {"run_id": self._run_id, "role": role, "step": step, "key": key, "value": value}
                for role, found in point.numbers.items()
                for key, value in found.items()
            ],
        )
        self.latest = point
        for drain in self._drains:
            drain.offer(point)
        return point

    def close(self) -> None:
        """Let the trackers finish, for a bounded time; idempotent."""
        deadline = time.monotonic() + _PATIENCE_S
        for drain in self._drains:
            drain.finish()
        for drain in self._drains:
            drain.join(deadline)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Drain:
    """A thread that feeds one tracker from a bounded queue until the tracker fails or falls behind."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._points: queue.Queue[Point | None] = queue.Queue(_BACKLOG)
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
            self._switch_off(f"{_BACKLOG} steps behind")

    def finish(self) -> None:
        """No more points will come."""
        if not self._finished:
            self._finished = True
            try:
                self._points.put_nowait(None)
            except queue.Full:
                self._switch_off(f"{_BACKLOG} steps behind at the end of the run")

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


def _elapsed(buffer: Buffer, run_id: str) -> float:
    """Seconds the run's former starts were at work, as far as they recorded it."""
    where = And(
        (
            Compare("run_id", "eq", run_id),
            Compare("role", "eq", MetricRole.LOOP),
            Compare("key", "eq", ELAPSED_S),
        )
    )
    found = buffer.read("metrics", ["value"], where).column("value")
    return float(found[-1].as_py()) if len(found) else 0.0
