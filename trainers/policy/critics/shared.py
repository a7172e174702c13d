"""A critic that is a head on the policy: one forward pass gives logprobs and values."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from rft_data.core.errors import TrainingError
from trainers.policy.critics.value_head import ValueHead


class SharedCritic:
    """Values from the policy's last hidden states; their loss trains the policy's backbone too.

    The head is computed inside the model's forward, so that DistributedDataParallel and FSDP see that it is
    used.
    """

    reads_policy_pass = True

    def __init__(self, model: PreTrainedModel, folder: Path | None) -> None:
        """Put a head on `model`, which TRL has patched; `folder`: where `save` wrote the head's weights."""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.head = ValueHead(base.config.get_text_config().hidden_size)
        if folder is not None:
            self.head.load(folder)
        base.value_head = self.head.to(base.device)
        self._hidden: torch.Tensor | None = None
        self._values: torch.Tensor | None = None
        self.detached = False
        """While true, the value loss trains the head alone."""
        base.base_model.register_forward_hook(self._keep)
        base.forward = types.MethodType(self._with_values(base.forward), base)

    def values(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(B, C) values before each token, from the policy's last pass, which must be over these rows."""
        if self._values is None or len(self._values) != len(batch["completion_ids"]):
            raise TrainingError(
                "the shared critic has no pass of the policy over these rows; this is a defect."
            )
        values, self._values = self._values, None
        return values[:, -batch["completion_ids"].shape[1] :]

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of the head."""
        return list(self.head.parameters())

    def beside_policy(self) -> list[torch.nn.Module]:
        """None: the head is part of the policy model."""
        return []

    def save(self, folder: Path, *, write: bool) -> None:
        """Write the head. Every rank calls it, one of them with `write`."""
        self.head.save(folder, write=write)

    def _keep(self, module: torch.nn.Module, args: object, output: BaseModelOutput) -> None:
        self._hidden = output.last_hidden_state

    def _with_values(self, forward: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(forward)
        def wrapped(_: object, *args: object, **kwargs: object) -> object:
            outputs = forward(*args, **kwargs)
            assert self._hidden is not None  # noqa: S101 - the backbone has run
            hidden, self._hidden = self._hidden[:, :-1], None
            values = self.head(hidden.detach() if self.detached else hidden)
            self._values = values
            if isinstance(outputs, ModelOutput):
                # DistributedDataParallel looks for used parameters in the outputs of forward.
                outputs["values"] = values
            return outputs

        return wrapped
