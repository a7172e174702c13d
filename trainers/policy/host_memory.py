"""Puts what a trainer keeps on its device into the machine's memory, while an engine uses the device.

It moves the weights of the policy, the reference model and a separate critic, and the optimizer's state.
Gradients are none between two steps; the buckets that DistributedDataParallel keeps for them stay.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trainers.policy.experience_grpo import ExperienceGRPOTrainer

HOST = torch.device("cpu")


class HostMemory:
    """Moves a trainer's tensors to the machine's memory, and back; between two steps only."""

    def __init__(self, trainer: ExperienceGRPOTrainer, host: torch.device = HOST) -> None:
        """Nothing is moved yet. `host`: where tensors sleep."""
        self._trainer = trainer
        self._host = host
        self._state: list[tuple[dict[str, torch.Tensor], str]] = []
        """Tensors of the optimizer's state that were moved: what holds them, and their key."""
        self.asleep = False

    def sleep(self) -> None:
        """Free the device; idempotent. Ranks that share a model must all call it."""
        if self.asleep:
            return
        self.asleep = True
        self._state = list(self._on_device())
        self._move(self._host)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Take the device back, with every tensor as it was; idempotent."""
        if self.asleep:
            self._move(self._trainer.accelerator.device)
            self.asleep = False

    def _move(self, device: torch.device) -> None:
        for model in self._models():
            model.to(device)
        for values, name in self._state:
            values[name] = values[name].to(device)

    def _models(self) -> Iterator[torch.nn.Module]:
        trainer = self._trainer
        critic = () if trainer.critic is None else trainer.critic.model.beside_policy()
        yield from (model for model in (trainer.model, trainer.ref_model, *critic) if model is not None)

    def _on_device(self) -> Iterator[tuple[dict[str, torch.Tensor], str]]:
        """The optimizer's state on the trainer's device: its counts of steps may be elsewhere."""
        device = self._trainer.accelerator.device
        optimizer = self._trainer.optimizer
        for values in () if optimizer is None else optimizer.state.values():
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and value.device == device:
                    yield values, name
