"""TRL's training loop as a servant: parked between orders, one order at a time.

`train()` cannot be called step by step, so it runs in one thread, and these callbacks fetch the next
order where the loop stands between two steps. They know nothing of batches' content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from rft_data.core.errors import TrainingError
from trainers.policy.parked import ParkedThread


@dataclass(frozen=True, slots=True)
class StepOrder:
    """Take one optimizer step."""

    batch: dict[str, torch.Tensor]
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """Write the trainer's state as it is between two steps."""


class LoopHooks(TrainerCallback):
    """Runs TRL's loop in its own thread and parks it between orders.

    The loop stands still at the end of an epoch (one epoch is one step, see ExperienceGRPOTrainer),
    when the step's log and checkpoint are written, and after a checkpoint that was ordered by itself.
    """

    def __init__(self, name: str, train: Callable[[], None], deadline_s: float) -> None:
        """`train` runs the loop to its end; `deadline_s` bounds each order."""
        self._train = train
        self._thread: ParkedThread[StepOrder | CheckpointOrder] = ParkedThread(name, self._body, deadline_s)
        self._order: StepOrder | CheckpointOrder | None = None
        self.metrics: dict[str, float] = {}
        """What TRL logged for the last step."""

    def carry_out(self, order: StepOrder | CheckpointOrder) -> None:
        """Have the loop carry out one order, and wait.

        Raises: what the loop raised; StalledError past the deadline.
        """
        self._thread.turn(order)

    def batch(self) -> dict[str, torch.Tensor]:
        """The batch of the step that the loop is at."""
        if not isinstance(self._order, StepOrder):
            raise TrainingError(
                "TRL asked for a batch that no step had ordered; this is a defect of GrpoTrainer"
            )
        return self._order.batch

    def close(self) -> None:
        """End the loop after the order it is at; idempotent.

        Raises: StalledError past the deadline.
        """
        self._thread.close()

    def _body(self) -> None:
        self._order = self._thread.park()
        if self._order is not None:
            self._train()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Have the step's checkpoint written, when its order wants one."""
        if isinstance(self._order, StepOrder) and self._order.checkpoint:
            control.should_save = True

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the step's metrics."""
        logs = kwargs["logs"]
        if "loss" in logs:
            self.metrics = {
                name: float(value) for name, value in logs.items() if isinstance(value, int | float)
            }

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Between two steps."""
        self._park(control)
        if isinstance(self._order, CheckpointOrder):
            control.should_save = True

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Between two steps again, when the checkpoint was an order of its own."""
        if isinstance(self._order, CheckpointOrder):
            self._park(control)

    def _park(self, control: TrainerControl) -> None:
        self._order = self._thread.park()
        if self._order is None:
            control.should_training_stop = True
