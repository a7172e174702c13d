"""TRL's training loop, which waits between two steps until it is told what to do next.

`train()` cannot be called step by step. It runs in a thread of its own, and these callbacks wait in it for
the next order at the end of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rft_data.core.errors import TrainingError
from trainers.policy.waiting_thread import WaitingThread


@dataclass(frozen=True, slots=True)
class StepOrder:
    """Take one optimizer step on `batch`, and write a checkpoint after it if `checkpoint` is true."""

    batch: dict[str, torch.Tensor]
    checkpoint: bool
    tokens: int = 0
    """Tokens of the whole lease, prompts included; TRL's state adds them up and is in the checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """Write a checkpoint between two steps."""


class LoopHooks(TrainerCallback):
    """Runs TRL's loop in a thread of its own, which waits between orders.

    The loop waits at the end of an epoch (one epoch is one step, see ExperienceGRPOTrainer), when the step's
    log and checkpoint are written, and after a checkpoint that was an order of its own.
    """

    def __init__(self, name: str, train: Callable[[], None], deadline_s: float) -> None:
        """`train` runs the loop to its end; `deadline_s` bounds each order."""
        self._train = train
        self._thread: WaitingThread[StepOrder | CheckpointOrder] = WaitingThread(name, self._body, deadline_s)
        self._order: StepOrder | CheckpointOrder | None = None
        self.metrics: dict[str, float] = {}
        """TRL's log of the last step."""

    def carry_out(self, order: StepOrder | CheckpointOrder) -> None:
        """Let the loop carry out one order, and wait until it is done.

        Raises: what the loop raised; StalledError past the deadline.
        """
        self._thread.carry_out(order)

    def batch(self) -> dict[str, torch.Tensor]:
        """The batch of the ordered step; TRL's loop calls it in its thread."""
        if not isinstance(self._order, StepOrder):
            raise TrainingError(
                "TRL asked for a batch that no step had ordered; this is a defect of GrpoTrainer"
            )
        return self._order.batch

    def close(self) -> None:
        """End the loop after its current order; idempotent.

        Raises: StalledError past the deadline.
        """
        self._thread.close()

    def _body(self) -> None:
        self._order = self._thread.next_order()
        if self._order is not None:
            self._train()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Count the step's tokens, before a checkpoint of the step is written."""
        if isinstance(self._order, StepOrder):
            state.num_input_tokens_seen += self._order.tokens

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Tell TRL to write a checkpoint, when the step's order asks for one."""
        if isinstance(self._order, StepOrder) and self._order.checkpoint:
            control.should_save = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: Mapping[str, object],
        **kwargs: object,
    ) -> None:
        """Keep the step's metrics."""
        if "loss" in logs:
            self.metrics = {
                name: float(value) for name, value in logs.items() if isinstance(value, int | float)
            }
            self.metrics["num_tokens"] = float(state.num_input_tokens_seen)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Wait for the next order: the step is done."""
        self._wait(control)
        if isinstance(self._order, CheckpointOrder):
            control.should_save = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Wait for the next order, when the checkpoint was an order of its own."""
        if isinstance(self._order, CheckpointOrder):
            self._wait(control)

    def _wait(self, control: TrainerControl) -> None:
        self._order = self._thread.next_order()
        if self._order is None:
            control.should_training_stop = True
