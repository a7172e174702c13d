"""The numbers of a run's steps, gathered from every part and stored once per step.

They go to the `metrics` table first, then to trackers and the Prometheus endpoint.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict

import pyarrow as pa

from rft_data.core.facts import ROLLOUT_REWARD, Window, ess_by_age, operator_facts, window_facts
from rft_data.core.groups import Lease
from rft_data.core.rows import StepReport
from rft_data.core.words import GroupOutcome, MetricRole
from rft_data.loop.exploring import Exploring
from rft_data.loop.online import OnlineLoop
from rft_data.recipe.monitor import Monitor
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.watch.flat_rewards import FlatRewards
from rft_data.run.watch.metrics_log import MetricsLog
from rft_data.run.watch.prometheus import MetricsServer
from rft_data.run.watch.samples import Sample, samples_of_step
from rft_data.run.watch.trackers import make_trackers
from rft_data.run.watch.trained_rows import trained_facts

log = logging.getLogger(__name__)

_SHOWN_EVERY = 10
Numbers = dict[str, dict[str, float]]


class StepLog:
    """Stores the numbers of every step; a context manager, which ends trackers and endpoint."""

    def __init__(
        self, run: Run, monitor: Monitor, exploring: Exploring, control: RunControl, steps: int
    ) -> None:
        """Gather from these parts, for a run of `steps` optimizer steps."""
        self._run = run
        self._monitor = monitor
        self._parts = exploring
        self._control = control
        self._steps = steps
        self._last = time.monotonic()
        self._cpu = time.process_time()
        self._flat = FlatRewards()
        self._open = ExitStack()

    def __enter__(self) -> StepLog:
        run, monitor = self._run, self._monitor
        trackers = make_trackers(monitor.trackers, run.run_id, run.directory, self._steps)
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

    def stepped(
        self, loop: OnlineLoop, lease: Lease, report: StepReport, heldout: Mapping[str, float]
    ) -> None:
        """Write the numbers of the step just taken; `heldout`: those of an evaluation after it."""
        rows = self._run.buffer.take(lease.seqs)
        numbers = self._numbers(loop, lease, report)
        numbers[MetricRole.TRAINER] |= trained_facts(rows)
        if heldout:
            numbers[MetricRole.RUN] = dict(heldout)
        self._log.record(lease.step, loop.versions.latest, numbers, self._samples(lease, rows))
        of_step = {"run_id": self._run.run_id, "consumer": lease.consumer, "step": lease.step}
        self._run.buffer.add_rows("trained_tokens", [{**of_step, **asdict(row)} for row in report.tokens])
        self._control.progress(f"step {loop.step} of {self._steps}", loop.step, self._steps)
        if loop.step % _SHOWN_EVERY == 0 or lease.step in (0, self._steps - 1):
            log.info("step %d/%d  %s", loop.step, self._steps, _shown(numbers, len(lease.group_ids)))

    def _samples(self, lease: Lease, rows: pa.Table) -> Sequence[Sample]:
        """Rollouts for the trackers, if there are any."""
        if not self._monitor.trackers:
            return ()
        leased = self._run.buffer.leased(lease, self._parts.closer.pipeline.pipeline_hash)
        return samples_of_step(rows, leased.table)

    def _numbers(self, loop: OnlineLoop, lease: Lease, report: StepReport) -> Numbers:
        parts = self._parts
        sampler = {
            **parts.sampler.metrics(),
            **parts.sampler.conservation(),
            GroupOutcome.AWAITING: parts.waiting,
        }
        explorers = parts.fleet.metrics()
        busy = {**parts.fleet.busy_seconds(), MetricRole.TRAINER: sum(loop.training.seconds.values())}
        busy[MetricRole.TRAINER] -= loop.training.seconds.get("idle", 0.0)
        for role in (MetricRole.TRAINER, *explorers):
            self._control.heard(role)
        window = self._window(report, busy, explorers, sampler)
        facts = window_facts(window)
        if warning := self._flat.after(window.rewards):
            log.warning(warning)
        trained_at = loop.versions.optimizer_step(lease.version)
        lag_of = {version: trained_at - loop.versions.optimizer_step(version) for version in report.ess}
        numbers: Numbers = {
            **{role: {**found, **explorers.get(role, {})} for role, found in facts.items()},
            MetricRole.TRAINER: {
                **facts[MetricRole.TRAINER],
                **report.metrics,
                **ess_by_age(report.ess, lag_of),
                "groups": float(len(lease.group_ids)),
                "parity": parts.fleet.parity,
                **parts.fleet.publication(),
            },
            MetricRole.SELECTOR: parts.dispatcher.selector.metrics(),
            MetricRole.OPS: _operators(parts.closer.pipeline.metrics()),
            MetricRole.SAMPLER: {key: float(value) for key, value in sampler.items()},
            MetricRole.SECONDS: {**loop.training.seconds, "judge": parts.judge_s},
        }
        cpu = time.process_time()
        numbers[MetricRole.LOOP]["cpu_s"], self._cpu = cpu - self._cpu, cpu
        return numbers

    def _window(
        self,
        report: StepReport,
        busy: Mapping[str, float],
        explorers: Mapping[str, Mapping[str, float]],
        sampler: Mapping[str, float],
    ) -> Window:
        """The events since the last step."""
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        return Window(
            elapsed_s=elapsed,
            steps=1,
            busy_s=busy,
            tokens={
                "generated": sum(found.get("tokens", 0.0) for found in explorers.values()),
                "trained": report.metrics.get("tokens", 0.0),
            },
            groups_by_state=self._parts.sampler.conservation(),
            rewards=self._parts.take_rewards(),
            dispatched={"taskset": _under("dispatched/", sampler)},
            trained={"taskset": _under("trained/", sampler)},
            arms={} if (arms := self._parts.fleet.arms) is None else arms.take_rewards(),
        )


def _shown(numbers: Numbers, groups: int) -> str:
    """A step in a line of the log; a run that explores nothing has no reward of all rollouts."""
    trainer, everything = numbers[MetricRole.TRAINER], numbers[MetricRole.LOOP].get(ROLLOUT_REWARD)
    return "  ".join(
        [
            f"reward {trainer.get('reward', math.nan):.3f} trained"
            + ("" if everything is None else f", {everything:.3f} all rollouts"),
            f"tokens {trainer.get('completions/mean_length', math.nan):.0f}",
            f"groups {groups}",
            f"staleness {numbers[MetricRole.SAMPLER].get('lag_max', 0.0):.0f}",
        ]
    )


def _operators(counts: Mapping[str, float]) -> dict[str, float]:
    return {**counts, **operator_facts(counts)} if counts else {}


def _under(prefix: str, numbers: Mapping[str, float]) -> dict[str, float]:
    return {k.removeprefix(prefix): v for k, v in numbers.items() if k.startswith(prefix)}
