"""A critic that is a model of its own: the policy's backbone as it was before training, with a head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel

from trainers.models.weights import load_model, whole_state
from trainers.policy.critics.value_head import ValueHead, require_head
from trainers.ranks.sharding import shard


class SeparateCritic:
    """Values from a second model; its loss does not change the policy's weights.

    It has no dropout, since noise in values is noise in advantages. Every process has a copy, whose gradients
    are averaged by `OwnGradients`, or a part, after `split`.
    """

    reads_policy_pass = False
    detached = False

    def __init__(self, model_path: Path, folder: Path | None, options: Mapping[str, object]) -> None:
        """Load the model.

        Args:
            model_path: the policy's folder, whose backbone the critic starts from.
            folder: where `save` wrote the critic; None: start from the policy.
            options: `model_init_kwargs` of the policy.
        """
        source = model_path if folder is None else folder
        if folder is not None:
            require_head(folder)
        config = AutoConfig.from_pretrained(source)
        for name, value in vars(config.get_text_config()).items():
            if "drop" in name and isinstance(value, float):
                setattr(config.get_text_config(), name, 0.0)
        if folder is None:
            # Through the whole model: AutoModel would warn of the head that it does not use.
            self.backbone = load_model(source, **options, config=config).base_model
        else:
            self.backbone = AutoModel.from_pretrained(
                source, **{"dtype": torch.float32, **options}, config=config
            )
        self.head = ValueHead(config.get_text_config().hidden_size)
        if folder is not None:
            self.head.load(folder)

    def place(self, device: torch.device, *, gradient_checkpointing: bool) -> None:
        """Move to the trainer's device."""
        self.backbone.to(device)
        self.head.to(device)
        self.backbone.train()  # gradient checkpointing needs train mode; there is no dropout
        if gradient_checkpointing:
            self.backbone.gradient_checkpointing_enable({"use_reentrant": False})

    def split(self, device: torch.device) -> None:
        """Split it over the ranks, after `place` and before its parameters are asked for."""
        shard(self.backbone, device)
        shard(self.head, device)

    def values(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(B, C) values before each token, with a gradient where gradients are enabled."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        columns = batch["completion_ids"].shape[1]
        hidden = self.backbone(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        values: torch.Tensor = self.head(hidden[:, -columns - 1 : -1])
        return values

    def parameters(self) -> list[torch.nn.Parameter]:
        """Parameters of backbone and head."""
        return [*self.backbone.parameters(), *self.head.parameters()]

    def beside_policy(self) -> list[torch.nn.Module]:
        """Backbone and head."""
        return [self.backbone, self.head]

    def save(self, folder: Path, *, write: bool) -> None:
        """Write backbone and head, where `write`; every rank calls it."""
        state = whole_state(self.backbone)
        if write:
            self.backbone.save_pretrained(folder, state_dict=state)
        self.head.save(folder, write=write)
