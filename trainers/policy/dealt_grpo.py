"""TRL's GRPO trainer on a whole lease that is dealt to ranks and micro-batches by us.

Every rank has the whole lease; it runs the model on its own rows only, and what it finds there (logprobs,
values) is put together again, so that functions of a lease never see a part of one. It computes no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from trl import GRPOTrainer

from trainers.policy.finite import require_finite
from trainers.policy.micro_batches import rank_micro_batches, rows_of, trimmed
from trainers.policy.scoring import has_plain_head, score

Tensors = dict[str, torch.Tensor]


class DealtGRPOTrainer(GRPOTrainer):
    """`_generate_and_score_completions` returns a whole lease on every rank, with what `deal` says of it."""

    def _prepare_inputs(self, generation_batch: Any) -> Tensors:
        """This rank's next micro-batch, as it was dealt (TRL would shuffle, and cut into equal parts)."""
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
        """(R, C) of each of the tensors, (B, C) of a micro-batch, that `score` makes of it; 0 on padding.

        Each rank scores its own rows; all must call it.
        """
        found: list[torch.Tensor] = []
        for rows in rows_of(lease, self.accelerator.process_index):
            scored = score(trimmed(lease, rows))
            found = found or [s.new_zeros(lease["completion_ids"].shape, dtype=torch.float32) for s in scored]
            for whole, part in zip(found, scored, strict=True):
                whole[rows, : part.shape[1]] = part.float()
        return [self.accelerator.reduce(whole) for whole in found]  # the other ranks' rows are 0 here

    def _logprobs(self, model: Any, lease: Tensors) -> torch.Tensor:
        """(R, C) log probabilities of the completions under `model` without dropout, nats; 0 on padding.

        `model`: None for the policy without its adapter.
        """
        with nullcontext() if model is not None else self.model.disable_adapter():
            chosen = self.model if model is None else model
            was_training = chosen.training
            chosen.eval()
            [logprobs] = self._over_lease(lease, lambda part: [self._scored_tokens(chosen, part)])
            chosen.train(was_training)
        return logprobs

    def _scored_tokens(self, model: Any, part: Tensors) -> torch.Tensor:
        logprobs: torch.Tensor = self._get_per_token_logps_and_entropies(model, *sequence(part))[0]
        return logprobs

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, kept: int, **kwargs: Any
    ) -> Any:
        plain = self.accelerator.unwrap_model(model)
        mixed = self.accelerator.mixed_precision != "no"  # the model's forward computes in another precision
        if self.aux_loss_enabled or mixed or not has_plain_head(plain):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, kept, **kwargs
            )
        head = plain.get_output_embeddings().weight
        return *score(model, head, input_ids, attention_mask, kept, self.temperature), None

    def _over_ranks(self, loss: torch.Tensor) -> float:
        """The mean over ranks of a 0-dim loss, which is scaled so that it is the micro-batch's."""
        mean: torch.Tensor = self.accelerator.reduce(loss.detach(), reduction="mean")
        return float(mean)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One micro-batch, forward and backward.

        Raises: TrainingError when the loss of any rank is not finite, on every rank, before any weight
            changes.
        """
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        require_finite("loss", self.accelerator.reduce(loss.detach()))
        return loss


def sequence(batch: Tensors) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Token ids and attention (B, P + C), and C."""
    return (
        torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
        torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
        batch["completion_ids"].shape[1],
    )
