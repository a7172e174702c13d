"""The trainer of a run: it trains on one lease at a time, and writes a new version of its weights when due.

A step counts once its version is recorded; until then nothing else is leased. The loop decides what is leased
and when a run ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from rft_data.core.errors import RoleDiedError, TrainerDiedError
from rft_data.core.failpoints import failpoint
from rft_data.core.groups import Lease
from rft_data.core.roles import Role
from rft_data.core.rows import FileFacts, StepReport, WeightRef
from rft_data.weights.versions import VersionRegistry


@dataclass(frozen=True, slots=True)
class Done:
    """A lease trained on, weights written, or both."""

    lease: Lease | None
    """The lease it trained on; None when it only wrote weights."""
    report: StepReport | None
    """Report of the trainer on the step; None when it only wrote weights."""
    ref: WeightRef | None
    """The weights it wrote; None when they were not due."""


class Training:
    """The call that the trainer is working on, if any, and what follows from its result."""

    def __init__(
        self,
        role: Role,
        versions: VersionRegistry,
        *,
        publish_due: Callable[[int], bool],
        deadline_s: float,
    ) -> None:
        """Train with `role`, which is already running.

        Args:
            publish_due: whether the weights of a step are published.
            deadline_s: longest a step, or the writing of weights, may take.
        """
        self._role = role
        self._versions = versions
        self._publish_due = publish_due
        self._deadline_s = deadline_s
        self._lease: Lease | None = None
        self._report: StepReport | None = None
        self._after = 0
        self._began = 0.0
        self.future: Future[object] | None = None
        """The call under way."""
        self.seconds: dict[str, float] = {}
        """Wall seconds of the last step by phase: `idle` before it, `train`, `publish`."""
        self._ended = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self.future is not None

    def begin(self, lease: Lease, *, checkpoint: bool) -> None:
        """Start the optimizer step of a lease; with `checkpoint`, trainer state is written too."""
        failpoint("step.begin")
        self._lease, self._after = lease, lease.step + 1
        self.seconds = {"idle": time.monotonic() - self._ended}
        self._call("step", StepReport, lease=lease, checkpoint=checkpoint)

    def save(self, step: int) -> None:
        """Start writing the present weights, `step` optimizer steps old, as a new version."""
        self._after = step
        header = self._versions.header(step)
        self._call("save_weights", str, directory=str(self._versions.draft(step)), header=header)

    def collect(self) -> Done | None:
        """The trainer's finished work; None while there is more to do.

        Raises: TrainerDiedError when its process ended; what the trainer raised. The lease of a failed step
            is not settled.
        """
        if self.future is None or not self.future.done():
            return None
        try:
            outcome, self.future = self.future.result(), None
        except RoleDiedError as err:
            raise TrainerDiedError(str(err)) from err
        ref = None
        if isinstance(outcome, StepReport):
            failpoint("step.done")
            self._clock("train")
            self._report = outcome
            if self._publish_due(self._after):
                self.save(self._after)
                return None
            self._versions.issue(self._after)
        else:
            ref = self._versions.finish(self._after, str(outcome))
            self._clock("publish")
        self._ended = time.monotonic()
        done = Done(self._lease, self._report, ref)
        self._lease = self._report = None
        return done

    def rest(self, asleep: bool) -> None:
        """Have the trainer leave its GPUs to engines or take them back, between steps, and wait for it.

        Raises: TrainerDiedError when its process ended; what the trainer raised.
        """
        method = "sleep" if asleep else "wake"
        try:
            self._role.call(method, None, deadline_s=self._deadline_s).result()
        except RoleDiedError as err:
            raise TrainerDiedError(str(err)) from err

    def checkpoint(self) -> dict[str, FileFacts]:
        """Write the trainer's state now, between steps; returns its files."""
        call = self._role.call("checkpoint", dict[str, FileFacts], deadline_s=self._deadline_s)
        files: dict[str, FileFacts] = call.result()
        return files

    def _call(self, method: str, returns: object, **arguments: object) -> None:
        self._began = time.monotonic()
        self.future = self._role.call(method, returns, deadline_s=self._deadline_s, **arguments)

    def _clock(self, phase: str) -> None:
        self.seconds[phase] = time.monotonic() - self._began
