"""One run, two step axes: every number of every role, in the buffer's `metrics` table first.

A step's numbers are one commit. The policy version and the elapsed time of a step are numbers too (role
`loop`), so either can be the axis. Trackers come after the table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare
from rft_data.core.words import MetricRole
from rft_data.run.watch.samples import Sample
from rft_data.run.watch.tracker_feed import Point, Tracker, TrackerFeed

VERSION, ELAPSED_S = "policy_version", "elapsed_s"


class MetricsLog:
    """The run's numbers: the table, then the trackers."""

    def __init__(self, buffer: Buffer, run_id: str, trackers: Sequence[Tracker] = ()) -> None:
        """Continue the run's clock from what the table holds."""
        self._buffer = buffer
        self._run_id = run_id
        self._start = time.monotonic() - _elapsed(buffer, run_id)
        self._feed = TrackerFeed(trackers)
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
        self._feed.offer(point)
        return point

    def close(self) -> None:
        """Let the trackers finish, for a bounded time; idempotent."""
        self._feed.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
