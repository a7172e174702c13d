"""The loop of a run that explores with a fixed policy: groups are played until there are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rft_data.core.errors import EngineError, Stopped
from rft_data.core.words import GroupState
from rft_data.loop.exploring import Exploring
from rft_data.loop.repeating import Loop
from rft_data.weights import checkpoint


@dataclass
class ExploreLoop(Loop):
    """Explorers and operators around one buffer, with a checkpoint every so many groups."""

    exploring: Exploring
    groups: int
    """Groups to close, including those of earlier starts."""
    checkpoint_every: int
    """Groups between two checkpoints, and the most that are under way at once."""
    checkpoints: Path
    on_progress: Callable[[int, int], None]
    """Called with the groups that are closed, and all that are to be."""
    stop_requested: Callable[[], bool] = lambda: False
    sealed: Callable[[], None] = lambda: None
    """Called when a checkpoint is complete."""
    _sealed: int = field(default=0, init=False)
    """Groups that the last checkpoint holds."""

    def run(self) -> None:
        """Explore until enough groups are closed.

        Raises: EngineError when every group failed, or no explorer serves weights; Stopped when asked to.
        """
        self._sealed = self.exploring.closed
        self.repeat()
        self._end()

    def finished(self) -> bool:
        """Whether enough groups are closed."""
        return self.exploring.closed >= self.groups

    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self.stop_requested()

    def start(self) -> None:
        """Start the groups that are still wanted, at most those of one checkpoint."""
        wanted = min(self.groups - self.exploring.closed, self.checkpoint_every)
        self.exploring.start(wanted - self.exploring.under_way)

    def collect(self) -> None:
        """Close the groups that arrived; write a checkpoint when one is due."""
        self.exploring.collect()
        if self.exploring.closed >= self._sealed + self.checkpoint_every:
            self._sealed = self.exploring.closed
            self.seal()
        self.on_progress(self.exploring.closed, self.groups)

    def stop(self) -> None:
        """Write a checkpoint. Raises: Stopped, or EngineError when every group failed."""
        self._end()
        raise Stopped(f"stopped after {self.exploring.closed} of {self.groups} groups, as asked")

    def nothing_under_way(self) -> None:
        """Raises: EngineError, always: groups are wanted and no explorer plays."""
        self._end()
        raise EngineError(
            f"no explorer serves weights, {self.exploring.closed} of {self.groups} groups are played; "
            "this is a defect: report it with the run's log."
        )

    def seal(self) -> None:
        """Write a checkpoint: the state of the selector and of open tickets."""
        exploring, closer = self.exploring, self.exploring.closer
        selector = exploring.dispatcher.selector.state_dict()
        state = {"selector": selector, "dispatcher": exploring.dispatcher.state_dict()}
        row = {"run_id": closer.run_id, "step": exploring.closed, "selector": selector}
        closer.buffer.add_rows("task_state", [row])
        folder = self.checkpoints / f"checkpoint-{exploring.closed}"
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.seal(folder, exploring.closed, state)
        self.sealed()
        checkpoint.prune(self.checkpoints, keep=checkpoint.KEPT)

    def _end(self) -> None:
        """Write the last checkpoint. Raises: EngineError when every group failed."""
        self.seal()
        exploring = self.exploring
        if exploring.closed and exploring.sampler.conservation()[GroupState.FAILED] == exploring.closed:
            raise EngineError(
                f"all {exploring.closed} groups failed, the last with: {exploring.last_error}; there is "
                "nothing to train on. Correct the reward, the workflow or the tasks, and start over with "
                "--fresh."
            )
