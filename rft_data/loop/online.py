"""The online loop, against protocols only: explore, judge, lease, train, publish.

It says what may start, what follows a step, and when a run is over; `repeating.py` calls it again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.core.errors import StalledError, Stopped, TrainingError
from rft_data.core.files import MANIFEST_FILE
from rft_data.core.groups import Lease
from rft_data.core.rows import FileFacts, StepReport
from rft_data.core.words import ADMITTED, GroupState
from rft_data.loop.exploring import Exploring
from rft_data.loop.repeating import Loop
from rft_data.loop.shared_gpus import SharedGpus
from rft_data.loop.training import Training
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.weights import checkpoint
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many steps a run takes, and what happens every how many steps."""

    steps: int
    """Optimizer steps of the run."""
    groups_per_step: int
    publish_every: int
    """Steps between weight publications."""
    checkpoint_every: int
    max_explored_per_step: int
    """Groups explored for one step before it goes ahead with fewer than `groups_per_step`."""

    def publish_due(self, step: int) -> bool:
        """Whether the weights of `step` go to the explorers."""
        return step % self.publish_every == 0 or step == self.steps

    def checkpoint_due(self, step: int) -> bool:
        """Whether `step` ends with a checkpoint."""
        return step % self.checkpoint_every == 0 or step == self.steps


@dataclass
class OnlineLoop(Loop):
    """Explorers, operators, sampler and trainer around one buffer."""

    exploring: Exploring
    buffer: Buffer
    ledger: Ledger
    training: Training
    versions: VersionRegistry
    schedule: Schedule
    checkpoints: Path
    """Folder in which the trainer writes them: `checkpoint-<step>`."""
    step: int
    """Optimizer steps that the present weights have taken."""
    on_step: Callable[[OnlineLoop, Lease, StepReport], None]
    """Called after every step."""
    stop_requested: Callable[[], bool] = lambda: False
    shared_gpus: SharedGpus | None = None
    """GPUs that engines and trainer use in turns; None: each has its own."""
    sealed: Callable[[], None] = lambda: None
    """Called when a checkpoint is complete, before its leases count as consumed."""
    _boundary: dict[str, object] = field(default_factory=dict)
    """The state of the parts when the last step was done: a resume starts from it."""

    def run(self) -> None:
        """Train until `schedule.steps` optimizer steps are taken.

        Raises: StalledError if nothing can go on; Stopped when asked to; what a role raised.
        """
        self.publish_first()
        self.repeat()

    def publish_first(self) -> None:
        """Publish the trainer's weights and wait until the explorers serve them, before exploring starts."""
        self._boundary = self.state()
        self.training.save(self.step)
        self.drain()

    def finished(self) -> bool:
        """Whether every step is taken."""
        return self.step >= self.schedule.steps

    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self.stop_requested()

    def start(self) -> None:
        """Start groups, and the next step if enough of them are ready."""
        self.explore()
        self.train(self.schedule.groups_per_step)

    def under_way(self) -> list[Future[object]]:
        """Every call that has not been collected."""
        training = self.training.future
        return [*super().under_way(), *([] if training is None else [training])]

    def collect(self) -> None:
        """Collect whatever has finished."""
        done = self.training.collect()
        if done is not None and self.shared_gpus is not None:
            self.shared_gpus.to_engines()
        if done is not None and done.ref is not None:
            self.exploring.fleet.publish(done.ref)
        if done is not None and done.lease is not None and done.report is not None:
            self.stepped(done.lease, done.report)
        self.exploring.collect(self.missing())

    def missing(self) -> int:
        """Groups that have to be closed before the next step can begin; 0 if the trainer need not wait."""
        sampler, wanted = self.exploring.sampler, self.schedule.groups_per_step
        if self.training.busy or sampler.ready >= wanted:
            return 0
        return max(1, wanted - sampler.conservation()[GroupState.READY])

    def explore(self) -> None:
        """Start the groups that the run still needs and this step may still explore."""
        plan, outstanding = self.schedule, self.exploring.sampler.outstanding
        wanted = (plan.steps - self.step) * plan.groups_per_step - outstanding
        self.exploring.start(min(wanted, plan.max_explored_per_step - self.exploring.closed))

    def train(self, n_groups: int) -> bool:
        """Lease n groups and start their step; False if the trainer is busy or fewer are ready."""
        if self.training.busy:
            return False
        lease = self.exploring.sampler.lease(CONSUMER, self.step, n_groups, self.versions.latest)
        if lease is None:
            return False
        self.exploring.closed, self.exploring.last_error = 0, ""
        self.exploring.repeat(self.step)
        if self.shared_gpus is not None:
            self.shared_gpus.to_trainer()
        self.training.begin(lease, checkpoint=self.schedule.checkpoint_due(self.step + 1))
        return True

    def stepped(self, lease: Lease, report: StepReport) -> None:
        """Account for a step that is done: settle its lease, call `on_step`, checkpoint if one is due."""
        self.exploring.sampler.settle(lease)
        self.step += 1
        self.on_step(self, lease, report)
        self.exploring.judge_s = 0.0
        self._boundary = self.state()
        if self.schedule.checkpoint_due(self.step):
            self.seal(report.files)

    def state(self) -> dict[str, object]:
        """The state of the parts that cannot be rebuilt from the tables."""
        parts = self.exploring
        return {
            "selector": parts.dispatcher.selector.state_dict(),
            "dispatcher": parts.dispatcher.state_dict(),
            "sampler": parts.sampler.state_dict(),
            "groups": parts.sampler.conservation(),
            "rows": len(self.buffer),
            "version": self.versions.latest,
        }

    def seal(self, files: Mapping[str, FileFacts]) -> None:
        """Complete the trainer's checkpoint of this step and record that its leases are consumed."""
        state = self._boundary
        row = {"run_id": self.ledger.run_id, "step": self.step, "selector": state["selector"]}
        self.buffer.add_rows("task_state", [row])
        checkpoint.seal(self.checkpoints / f"checkpoint-{self.step}", self.step, state, files)
        self.sealed()
        self.ledger.consume(CONSUMER, self.step)
        checkpoint.prune(self.checkpoints, keep=checkpoint.KEPT)

    def nothing_under_way(self) -> None:
        """Train on fewer groups if some are ready.

        Raises: when no group may be trained, StalledError where rollouts fail, TrainingError where operators
            drop them all.
        """
        sampler = self.exploring.sampler
        ready, wanted = sampler.ready, self.schedule.groups_per_step
        if ready and self.train(min(ready, wanted)):
            log.warning("step %d goes ahead with %d of %d groups", self.step, ready, wanted)
            return
        counts = sampler.conservation()
        found = ", ".join(f"{n} {state}" for state, n in counts.items() if n and state != ADMITTED)
        what = (
            f"step {self.step}: none of the {self.exploring.closed} groups explored for it may be trained "
            f"(groups of the run: {found or 'none'})"
        )
        if self.exploring.last_error:
            raise StalledError(f"{what}; rollouts fail, the last with: {self.exploring.last_error}.")
        raise TrainingError(
            f"{what}; the operators drop every group, and would again: look at `rft buffer head --table "
            "annotations`, loosen 'experience_ops' or choose other tasks."
        )

    def stop(self) -> None:
        """Write a checkpoint of the present step, unless there is one.

        Raises: Stopped, always.
        """
        if self.step and not (self.checkpoints / f"checkpoint-{self.step}" / MANIFEST_FILE).is_file():
            if self.shared_gpus is not None:
                self.shared_gpus.to_trainer()
            self.seal(self.training.checkpoint())
        raise Stopped(f"stopped at step {self.step} of {self.schedule.steps}, as asked")
