"""TRL's GRPO trainer fed from leased experiences instead of its own generation.

Only where the batch comes from is ours: every loss, optimizer and precision option is TRL's. Old
log probabilities are those stored at rollout (arXiv:2402.03300, equation 3), so the ratio is exact
for stale data. One process; one lease is one optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rft_data.errors import TrainingError
from trainers.collate import collate
from trainers.finite import require_finite

_SUM_OVER_TOKENS = frozenset({"dapo", "cispo", "vespo"})
_MEAN_OVER_ROWS = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})


def padding_factor(args: GRPOConfig, rows: int) -> float:
    """What to multiply advantages by so that padding `rows` rows to the full batch changes no gradient.

    Losses that divide by the batch's sampled tokens ignore padding; those that average over rows are
    linear in the advantage, so full / rows undoes the larger divisor. Exact for dense models.

    Raises: TrainingError when no factor makes the padded gradient equal to the unpadded one.
    """
    full = args.generation_batch_size
    if rows == full:
        return 1.0
    obstacle = _padding_obstacle(args)
    if obstacle:
        raise TrainingError(
            f"the lease has {rows} rows and the trainer's batch {full}; {obstacle}, so padding would change "
            "the gradient. Use trl.loss_type 'dapo', or keep every group whole so that leases are full."
        )
    return full / rows if args.loss_type in _MEAN_OVER_ROWS else 1.0


def _padding_obstacle(args: GRPOConfig) -> str:
    """Why padding cannot be undone under these options; empty when it can."""
    mean_over_rows = args.loss_type in _MEAN_OVER_ROWS
    if mean_over_rows and args.beta != 0.0:
        return f"loss_type '{args.loss_type}' averages the KL term over rows"
    if args.gradient_accumulation_steps == 1:
        return ""
    if not mean_over_rows and args.loss_type not in _SUM_OVER_TOKENS:
        return f"loss_type '{args.loss_type}' averages over the tokens of each micro-batch"
    if args.entropy_coef != 0.0 or args.use_adaptive_entropy or args.top_entropy_quantile < 1.0:
        return "the entropy terms average over the tokens of each micro-batch"
    return ""


def _no_reward(prompts: list[Any], **_: Any) -> list[float]:
    """TRL demands a reward function; rewards were given when the experiences were made."""
    return [0.0] * len(prompts)


class ExperienceGRPOTrainer(GRPOTrainer):
    """GRPO (and the losses TRL offers beside it) on experiences that `next_table` hands out."""

    def __init__(
        self,
        model: PreTrainedModel,
        args: GRPOConfig,
        tokenizer: PreTrainedTokenizerBase,
        next_table: Callable[[], pa.Table],
        callbacks: list[TrainerCallback],
    ) -> None:
        """`next_table` is called once for each optimizer step and returns that step's leased rows."""
        self._next_table = next_table
        # One pass over these rows is exactly one optimizer step, so every step ends an epoch.
        placeholder = Dataset.from_dict(
            {"prompt": [""] * (args.generation_batch_size // args.num_generations)}
        )
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=args,
            train_dataset=placeholder,
            processing_class=tokenizer,
            callbacks=callbacks,
        )

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        """The batch of one optimizer step, in the form TRL's loss reads."""
        table = self._next_table()
        batch = collate(
            table, rows=self.args.generation_batch_size, pad_id=self.processing_class.pad_token_id
        )
        batch["advantages"] *= padding_factor(self.args, table.num_rows)
        batch = {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}
        if self.beta != 0.0:
            batch["ref_per_token_logps"] = self._reference_logprobs(batch)
        # TRL shuffles rows with the process-wide generator, which other parts of the process may have
        # advanced; seeding it by step keeps a resumed run exact.
        torch.manual_seed(self.args.seed + self.state.global_step)
        return batch

    @torch.no_grad()
    def _reference_logprobs(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(R, C) log probabilities of the completions under the reference model, nats."""
        logprobs, _, _ = self._get_per_token_logps_and_entropies(
            self.ref_model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
            batch_size=self.args.per_device_train_batch_size,
        )
        out: torch.Tensor = logprobs
        return out

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One micro-batch, forward and backward.

        Raises: TrainingError when its loss is not finite, before any weight changes.
        """
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        require_finite("loss", loss)
        return loss
