"""TRL's GRPO trainer on a whole lease, whose rows we deal to ranks and micro-batches.

Every rank has the whole lease and runs the model on its own rows only. The results of all ranks (logprobs,
values) are put together, so that batch operators see the whole lease. No loss is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel

from trainers.policy.finite import require_finite
from trainers.policy.images import Images
from trainers.policy.micro_batches import micro_batch_rows, rank_micro_batches, trimmed
from trainers.policy.scoring import has_plain_head, score
from trainers.policy.sharded_grpo import ShardedGRPOTrainer

Tensors = dict[str, torch.Tensor]
Scored: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""(B, C) logprobs and entropies, nats, and the balance loss of a mixture of experts."""


class DealtGRPOTrainer(ShardedGRPOTrainer):
    """A subclass's `_generate_and_score_completions` returns the whole lease, dealt."""

    images: Images | None = None
    """For a model that looks at images."""

    def _prepare_inputs(self, generation_batch: object) -> Tensors:
        """This rank's next micro-batch, as dealt. (TRL would shuffle rows and cut them into equal parts.)"""
        at = self._step % self.args.steps_per_generation
        if at == 0:
            lease = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = rank_micro_batches(lease, self.accelerator.process_index)
        inputs: Tensors = self._buffered_inputs[at]
        return inputs

    @torch.no_grad()
    def _over_lease(
        self, lease: Tensors, score: Callable[[Tensors], Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Apply `score`, from a micro-batch to (B, C) tensors, to every row; the result is (R, C) each.

        Each rank scores its own rows; every rank must call it. Padding is 0.
        """
        found: list[torch.Tensor] = []
        for rows in micro_batch_rows(lease, self.accelerator.process_index):
            scored = score(trimmed(lease, rows))
            found = found or [s.new_zeros(lease["completion_ids"].shape, dtype=torch.float32) for s in scored]
            for whole, part in zip(found, scored, strict=True):
                whole[rows, : part.shape[1]] = part.float()
        return [self.accelerator.reduce(whole) for whole in found]  # rows of other ranks are 0 here

    def _logprobs(self, model: PreTrainedModel | None, lease: Tensors) -> torch.Tensor:
        """(R, C) log probabilities of the completions under `model`, without dropout, nats; 0 on padding.

        Args: model: None: the policy without its adapter.
        """
        with nullcontext() if model is not None else self.model.disable_adapter():
            chosen = self.model if model is None else model
            was_training = chosen.training
            chosen.eval()
            [logprobs] = self._over_lease(lease, lambda part: [self._scored_tokens(chosen, part)])
            chosen.train(was_training)
        return logprobs

    def _scored_tokens(self, model: PreTrainedModel, part: Tensors) -> torch.Tensor:
        shown = self._image_inputs(part)
        logprobs: torch.Tensor = self._get_per_token_logps_and_entropies(model, *sequence(part), **shown)[0]
        return logprobs

    def _scored_with_entropies(self, model: PreTrainedModel, part: Tensors) -> Scored:
        return self._get_per_token_logps_and_entropies(
            model,
            *sequence(part),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **self._image_inputs(part),
        )

    def _image_inputs(self, part: Tensors) -> dict[str, Any]:
        """Inputs of the forward pass of a micro-batch beside its tokens; empty without images."""
        if self.images is None:
            return {}
        return self.images.inputs(part, sequence(part)[0], self.accelerator.unwrap_model(self.model))

    def _get_per_token_logps_and_entropies(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        kept: int,
        **kwargs: object,
    ) -> Scored:
        plain = self.accelerator.unwrap_model(model)
        mixed = self.accelerator.mixed_precision != "no"  # the model's forward computes in another precision
        if self.aux_loss_enabled or mixed or not has_plain_head(plain):
            scored: Scored = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, kept, **kwargs
            )
            return scored
        head = plain.get_output_embeddings().weight
        seen = {name: given for name, given in kwargs.items() if isinstance(given, torch.Tensor)}
        logprobs, entropies = score(model, head, input_ids, attention_mask, kept, self.temperature, seen)
        return logprobs, entropies, None

    def _mean_over_ranks(self, loss: torch.Tensor) -> float:
        """The mean over ranks of a 0-dim loss; losses are scaled so that it is the micro-batch's loss."""
        mean: torch.Tensor = self.accelerator.reduce(loss.detach(), reduction="mean")
        return float(mean)

    def training_step(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Forward and backward pass of one micro-batch.

        Raises: TrainingError, on every rank and before any weight changes, when the loss of a rank is not
            finite.
        """
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        require_finite("loss", self.accelerator.reduce(loss.detach()))
        return loss


def sequence(batch: Tensors) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Token ids and attention of prompts with completions, (B, P + C) each, and C."""
    return (
        torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
        torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
        batch["completion_ids"].shape[1],
    )
