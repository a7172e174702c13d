"""The KL term while a stage trains: its estimates, and the coefficient of the step under way.

How the estimates are averaged is decided elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from trainers.policy.kl_term import KlTerm

_FILE = "kl_controller.json"
"""File in a checkpoint with the state of the coefficient's controller."""


class StepKl:
    """A KL term whose coefficient may change after every optimizer step, and is kept in checkpoints."""

    def __init__(self, term: KlTerm) -> None:
        self._term = term
        self._controller = term.controller()
        self._so_far = 0.0

    @property
    def is_adaptive(self) -> bool:
        """Whether `coef` changes during training."""
        return self._controller is not None

    @property
    def coef(self) -> float:
        """The coefficient of the step under way."""
        return self._term.coef if self._controller is None else self._controller.coef

    def per_token(
        self, inputs: dict[str, torch.Tensor], logprobs: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """(B, C) estimates of the KL to the reference, with a gradient; 0 where `mask` is 0."""
        sampled, ref = inputs["sampling_per_token_logps"], inputs["ref_per_token_logps"]
        return self._term.per_token(logprobs * mask, sampled * mask, ref * mask)

    def add(self, kl: float) -> None:
        """Add the part of one micro-batch to the KL of the step."""
        self._so_far += kl

    def end_step(self, rows: int) -> None:
        """Let the controller choose the next step's coefficient.

        Raises: TrainingError when the KL of the step is not finite and the coefficient follows it.
        """
        if self._controller is not None:
            self._controller.update(self._so_far, rows)
        self._so_far = 0.0

    def save(self, checkpoint: Path) -> None:
        """Write the coefficient into a checkpoint, where it is adaptive."""
        if self._controller is not None:
            (checkpoint / _FILE).write_text(json.dumps(self._controller.state_dict()))

    def load(self, checkpoint: Path) -> None:
        """Continue from a checkpoint's coefficient, where it is adaptive."""
        if self._controller is not None:
            self._controller.load_state_dict(json.loads((checkpoint / _FILE).read_text()))
