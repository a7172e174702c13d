"""A critic that is a head on the policy: one forward pass gives logprobs and values."""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from rft_data.core.errors import TrainingError
from trainers.policy.critics.value_head import ValueHead


class SharedCritic:
    """Values from the policy's last hidden states; their loss trains the policy's backbone too.

    The head is computed inside the model's forward, so that DistributedDataParallel and FSDP see it used.
    """

    reads_policy_pass = True

    def __init__(self, model: PreTrainedModel, folder: Path | None) -> None:
        """Put a head on `model` (already patched by TRL); `folder`: where `save` wrote its weights."""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.head = ValueHead(base.config.get_text_config().hidden_size)
        if folder is not None:
            self.head.load(folder)
        base.value_head = self.head.to(base.device)
        self._hidden: torch.Tensor | None = None
        self._values: torch.Tensor | None = None
        self.detached = False
        """While set, the value loss trains the head alone."""
        base.base_model.register_forward_hook(self._keep)
        base.forward = types.MethodType(self._with_values(base.forward), base)

    def values(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(B, C) values before each token, of the policy's last pass, which was over these rows."""
        if self._values is None or len(self._values) != len(batch["completion_ids"]):
            raise TrainingError(
                "the shared critic has no pass of the policy over these rows; this is a defect."
            )
        values, self._values = self._values, None
        return values[:, -batch["completion_ids"].shape[1] :]

    def parameters(self) -> list[torch.nn.Parameter]:
        """What the critic's learning rate is for: the head."""
        return list(self.head.parameters())

    def beside_policy(self) -> list[torch.nn.Parameter]:
        """Parameters that are not the policy model's: none."""
        return []

    def save(self, folder: Path, *, write: bool) -> None:
        """Write the head; every rank calls it, one with `write`."""
        self.head.save(folder, write=write)

    def _keep(self, module: Any, args: Any, output: Any) -> None:
        self._hidden = output.last_hidden_state

    def _with_values(self, forward: Any) -> Any:
        @functools.wraps(forward)
        def wrapped(_: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = forward(*args, **kwargs)
            assert self._hidden is not None  # noqa: S101 - the backbone has run
            hidden, self._hidden = self._hidden[:, :-1], None
            values = self.head(hidden.detach() if self.detached else hidden)
            self._values = values
            if isinstance(outputs, ModelOutput):
                # DistributedDataParallel looks for used parameters in what forward returns.
                outputs["values"] = values
            return outputs

        return wrapped
