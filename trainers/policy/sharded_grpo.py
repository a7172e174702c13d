"""TRL's GRPO trainer, without vLLM, on a model that FSDP2 may have split over the ranks.

accelerate's own FSDP needs GPUs, and saves what only as many ranks can load. Here torch's `fully_shard` is
used on any device, and every file is that of a trainer which keeps the model whole.

TRL imports vLLM wherever it is installed. Our explorers generate, never TRL; without vLLM a trainer's process
starts in 5.4 CPU seconds instead of 8.3.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from rft_data.core.absent import absent
from rft_data.core.errors import RecipeError
from trainers.models.weights import gathered_state
from trainers.ranks.sharding import keep_optimizer_state_whole, shard

with absent("vllm"):
    from trl import GRPOTrainer


class ShardedGRPOTrainer(GRPOTrainer):
    """A GRPO trainer whose model and reference model may be split over the ranks, by `split`."""

    model: PreTrainedModel
    is_split = False

    def split(self) -> None:
        """Split the models; called once, after everything that is trained was added to the policy.

        Raises: RecipeError where accelerate or DeepSpeed splits them already.
        """
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise RecipeError(
                "placement.trainer.shard is 'fsdp2', and accelerate was told to split the model too (by "
                "trl.fsdp, trl.deepspeed or accelerate launch); use one of them."
            )
        self.is_split = True
        for model in (self.model, self.ref_model):
            if model is not None:
                shard(model, self.accelerator.device)
        # For evaluation: with autocast, if there is any, and without DistributedDataParallel.
        self.model = self.model_wrapped = self.accelerator.prepare_model(self.model, evaluation_mode=True)

    def create_optimizer(self, *args: object, **kwargs: object) -> torch.optim.Optimizer:
        """TRL's optimizer; its state is saved and loaded whole."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and self.is_split:
            keep_optimizer_state_whole(optimizer)
        return optimizer

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights; every rank calls it, and rank 0 writes."""
        if not self.is_split:
            super().save_model(output_dir, _internal_call)
            return
        adapted = hasattr(self.model, "peft_config")
        state = gathered_state(self.model, self.model_wrapped, self.accelerator, trained_only=adapted)
        if self.args.should_save:
            self._save(output_dir, state_dict=state)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_split and not self.args.should_save:
            self.optimizer.state_dict()  # rank 0 gathers it, which takes every rank
        super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Read them on the CPU: transformers reads a whole optimizer state onto the device of each rank.

        (It cannot do so at all for ranks on CPUs, whose device has the name cpu:0.)
        """
        by_others = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if checkpoint is None or by_others or self.accelerator.num_processes == 1:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        folder = Path(checkpoint)
        for part, name in ((self.optimizer, OPTIMIZER_NAME), (self.lr_scheduler, SCHEDULER_NAME)):
            part.load_state_dict(torch.load(folder / name, map_location="cpu", weights_only=True))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: PreTrainedModel | None = None
    ) -> None:
        """Nothing where the model is split: it was made from the checkpoint before it was split."""
        if not self.is_split:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _clip_grad_norm(self, model: PreTrainedModel) -> object:
        return _plain(super()._clip_grad_norm(model))

    def _get_grad_norm(self, model: PreTrainedModel, grad_norm: object = None) -> object:
        return _plain(super()._get_grad_norm(model, grad_norm))


def _plain(norm: object) -> object:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
