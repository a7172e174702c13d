"""The numbers of a run that only explores: stored at each checkpoint, over the groups that are closed."""

from __future__ import annotations

import time
from contextlib import ExitStack

from rft_data.core.facts import Window, operator_facts, window_facts
from rft_data.core.words import GroupOutcome, MetricRole
from rft_data.loop.exploring import Exploring
from rft_data.recipe.monitor import Monitor
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.watch.metrics_log import MetricsLog
from rft_data.run.watch.prometheus import MetricsServer
from rft_data.run.watch.trackers import make_trackers


class GroupLog:
    """Stores the numbers of each checkpoint; a context manager, which ends trackers and endpoint."""

    def __init__(
        self, run: Run, monitor: Monitor, exploring: Exploring, control: RunControl, groups: int
    ) -> None:
        """Gather from these parts, for a run of `groups` groups."""
        self._run = run
        self._monitor = monitor
        self._parts = exploring
        self._control = control
        self._groups = groups
        self._last, self._stored = time.monotonic(), exploring.closed
        self._open = ExitStack()

    def __enter__(self) -> GroupLog:
        run, monitor = self._run, self._monitor
        trackers = make_trackers(monitor.trackers, run.run_id, run.directory, self._groups)
        self._log = self._open.enter_context(MetricsLog(run.buffer, run.run_id, trackers))
        if monitor.prometheus_port:
            server = MetricsServer(
                monitor.prometheus_port,
                run.run_id,
                lambda: self._log.latest,
                lambda: {"state": self._control.state},
            )
            self._open.enter_context(server)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def sealed(self) -> None:
        """Store the numbers since the last checkpoint, where groups were closed since then."""
        closed = self._parts.closed
        if closed == self._stored:
            return
        numbers = self._numbers(closed - self._stored)
        self._log.record(closed - 1, self._run.versions.latest, numbers)
        self._stored = closed

    def _numbers(self, groups: int) -> dict[str, dict[str, float]]:
        parts, now = self._parts, time.monotonic()
        elapsed, self._last = now - self._last, now
        explorers = parts.fleet.metrics()
        states = parts.sampler.conservation()
        facts = window_facts(
            Window(
                elapsed_s=elapsed,
                busy_s=parts.fleet.busy_seconds(),
                tokens={"generated": sum(found.get("tokens", 0.0) for found in explorers.values())},
                groups_by_state=states,
                rewards=parts.take_rewards(),
            )
        )
        loop = {key: value for key, value in facts[MetricRole.LOOP].items() if key != "steps_per_s"}
        counts = parts.closer.pipeline.metrics()
        sampler = {**parts.sampler.metrics(), **states, GroupOutcome.AWAITING: parts.waiting}
        for role in explorers:
            self._control.heard(role)
        return {
            **{role: {**facts.get(role, {}), **found} for role, found in explorers.items()},
            MetricRole.LOOP: {**loop, "groups_per_s": groups / elapsed},
            MetricRole.SELECTOR: dict(parts.dispatcher.selector.metrics()),
            MetricRole.OPS: {**counts, **operator_facts(counts)} if counts else {},
            MetricRole.SAMPLER: {key: float(value) for key, value in sampler.items()},
        }
