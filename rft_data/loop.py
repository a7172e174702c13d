"""The online loop, against protocols only: explore, judge, lease, train, publish.

What follows is the whole of synchronous and periodic training in one process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from rft_data import checkpoint
from rft_data.buffer import Buffer
from rft_data.errors import StalledError
from rft_data.judge import judge
from rft_data.ledger import Ledger
from rft_data.protocols import Explorer, Pipeline, Sampler, Selector, Trainer
from rft_data.rows import Lease, Task, TaskKey, Ticket
from rft_data.versions import VersionRegistry

log = logging.getLogger(__name__)

CONSUMER = "trainer"
_KEPT_CHECKPOINTS = 2


@dataclass(frozen=True, slots=True)
class Schedule:
    """How far, how often."""

    steps: int
    """Optimizer steps of the run."""
    groups_per_step: int
    publish_every: int
    """Steps between weight publications."""
    checkpoint_every: int
    max_explored_per_step: int
    """Groups explored for one step before it goes ahead with fewer than `groups_per_step`."""


@dataclass
class OnlineLoop:
    """Explorer, operators, sampler and trainer around one buffer."""

    run_id: str
    buffer: Buffer
    ledger: Ledger
    versions: VersionRegistry
    sampler: Sampler
    selector: Selector
    explorer: Explorer
    pipeline: Pipeline
    trainer: Trainer
    tasks: Mapping[TaskKey, Task]
    schedule: Schedule
    on_step: Callable[[int, Mapping[str, float]], None]
    """Told the step just taken and its metrics."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of the current step by phase."""
    last_error: str = ""
    """Why the last failed group failed."""
    parity: float = 0.0
    """Largest difference (nats) between engine and trainer logprobs at the last publication."""

    def run(self) -> None:
        """Train until `schedule.steps` optimizer steps are behind the weights."""
        plan = self.schedule
        self.publish(self.trainer.steps_done)
        for step in range(self.trainer.steps_done, plan.steps):
            self.seconds = {}
            lease = self.fill(step)
            with Stopwatch(self.seconds, "train"):
                batch = self.buffer.leased(lease, self.pipeline.pipeline_hash)
                due = (step + 1) % plan.checkpoint_every == 0 or step + 1 == plan.steps
                metrics = self.trainer.step(batch, checkpoint=due)
            self.sampler.settle(lease)
            self.advance(step + 1)
            self.record(step, {**metrics, **self.batch_metrics(lease, batch.table)})
            if due:
                self.checkpoint(step + 1)

    def fill(self, step: int) -> Lease:
        """Explore until a lease for `step` is ready.

        Raises: StalledError when operators drop every group of `max_explored_per_step`.
        """
        plan, explored, wanted = self.schedule, 0, self.schedule.groups_per_step
        while (lease := self.sampler.lease(CONSUMER, step, wanted, self.versions.latest)) is None:
            tickets = self.sampler.admit(plan.max_explored_per_step - explored, self.explorer.engine.version)
            if not tickets:
                wanted = self.sampler.conservation()["ready"]
                if wanted == 0:
                    raise StalledError(self.nothing_to_train(step, explored))
                log.warning("step %d goes ahead with %d of %d groups", step, wanted, plan.groups_per_step)
                continue
            explored += len(tickets)
            self.explore(tickets)
        return lease

    def nothing_to_train(self, step: int, explored: int) -> str:
        """Why a step has no group, and what to do."""
        counts = {state: n for state, n in self.sampler.conservation().items() if n}
        if self.last_error:
            why = f"rollouts fail, the last with: {self.last_error}"
        else:
            why = (
                "the operators drop every group: look at `rft buffer head --table annotations`, loosen "
                "'experience_ops' or choose other tasks"
            )
        return f"step {step}: none of the {explored} groups explored for it may be trained ({counts}); {why}."

    def explore(self, tickets: Sequence[Ticket]) -> None:
        """Play one group per ticket, store its rows, judge them, and only then close the ticket."""
        with Stopwatch(self.seconds, "explore"):
            keys = self.selector.select(len(tickets))
            groups = self.explorer.explore(
                [(t, self.tasks[key]) for t, key in zip(tickets, keys, strict=True)]
            )
        with Stopwatch(self.seconds, "store"):
            appended = self.buffer.append([row for group in groups for row in group.experiences])
        with Stopwatch(self.seconds, "judge"):
            attempt = self.ledger.attempt
            results = judge(groups, appended.rows, self.pipeline, self.buffer, self.run_id, attempt)
        for result in results:
            self.sampler.close(result)
        self.last_error = next((g.error for g in reversed(groups) if g.error), self.last_error)
        self.selector.observe(results)

    def advance(self, step: int) -> None:
        """Issue the version of the weights that `step` optimizer steps made; publish them when due."""
        if step % self.schedule.publish_every == 0 or step == self.schedule.steps:
            self.publish(step)
        else:
            self.versions.issue(step)

    def publish(self, step: int) -> None:
        """Write the current weights under a new version and have the engine prove that it serves them."""
        with Stopwatch(self.seconds, "publish"):
            self.parity = self.explorer.engine.load_weights(
                self.versions.publish(step, self.trainer.save_weights)
            )

    def checkpoint(self, step: int) -> None:
        """Complete the trainer's checkpoint and record which leases it holds."""
        directory = self.trainer.checkpoint_dir(step)
        selector = self.selector.state_dict()
        state = {"selector": selector, "sampler": self.sampler.conservation()}
        self.buffer.add_rows("task_state", [{"run_id": self.run_id, "step": step, "selector": selector}])
        checkpoint.seal(directory, step, state)
        self.ledger.consume(CONSUMER, step)
        checkpoint.prune(directory.parent, keep=_KEPT_CHECKPOINTS)

    def batch_metrics(self, lease: Lease, rows: pa.Table) -> dict[str, float]:
        """What the step trained on: reward, length, staleness in optimizer steps."""
        trained_at = self.versions.step_of(lease.version)
        lag = [trained_at - self.versions.step_of(v) for v in rows.column("version_min").to_pylist()]
        length = pc.subtract(pc.list_value_length(rows.column("token_ids")), rows.column("prompt_length"))
        return {
            "groups": len(lease.group_ids),
            "reward": pc.mean(rows.column("reward")).as_py(),
            "completion_tokens": pc.mean(length).as_py(),
            "staleness_max": max(lag),
            "version": self.versions.latest,
            "parity": self.parity,
        }

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Store the step's numbers in the `metrics` table and tell `on_step`."""
        roles = {
            "trainer": metrics,
            "selector": self.selector.metrics(),
            "ops": self.pipeline.metrics(),
            "sampler": self.sampler.conservation(),
            "seconds": self.seconds,
        }
        self.buffer.add_rows(
            "metrics",
            [
                {"run_id": self.run_id, "role": role, "step": step, "key": key, "value": float(value)}
                for role, numbers in roles.items()
                for key, value in numbers.items()
            ],
        )
        self.on_step(step, {**metrics, **{f"seconds/{k}": v for k, v in self.seconds.items()}})


class Stopwatch:
    """Adds the wall seconds of a `with` block to `book[phase]`."""

    def __init__(self, book: dict[str, float], phase: str) -> None:
        self._book = book
        self._phase = phase

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._book[self._phase] = self._book.get(self._phase, 0.0) + time.perf_counter() - self._start
