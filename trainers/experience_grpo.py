"""TRL's GRPO trainer fed from leased experiences instead of its own generation.

Only where the batch comes from is ours: every loss, optimizer and precision option is TRL's. The old
policy of the ratio is the one that sampled (its stored logprobs; arXiv:2402.03300, equation 3), or the
policy at the start of the step (arXiv:2505.24298). One process; one lease is one optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rft_data.errors import TrainingError
from trainers.collate import collate
from trainers.drift import Drift
from trainers.finite import require_finite
from trainers.off_policy import OffPolicy

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


def full_batch(table: pa.Table, args: GRPOConfig, pad_id: int) -> dict[str, torch.Tensor]:
    """The batch of one optimizer step, in the form TRL's loss reads, from the rows of its lease.

    A lease of which every row is masked makes a step without a gradient.

    Raises: RowError for a row that cannot be trained on; TrainingError when the rows are too many, too
        few for this loss, or hold no token to train on though not all are masked.
    """
    batch = collate(table, rows=args.generation_batch_size, pad_id=pad_id)
    if batch["num_items_in_batch"] == 0 and not _all_masked(table):
        raise TrainingError(
            f"none of the lease's {table.num_rows} rows has a sampled token (action_mask 1 after the "
            "prompt); drop such rows with an operator before they are leased."
        )
    batch["advantages"] *= padding_factor(args, table.num_rows)
    return batch


def _all_masked(table: pa.Table) -> bool:
    if "masked" not in table.column_names:
        return False
    masked: bool = pc.all(pc.fill_null(table.column("masked"), False)).as_py()
    return masked


class ExperienceGRPOTrainer(GRPOTrainer):
    """GRPO (and the losses TRL offers beside it) on the batches that `next_batch` hands out."""

    def __init__(
        self,
        model: PreTrainedModel,
        args: GRPOConfig,
        tokenizer: PreTrainedTokenizerBase,
        next_batch: Callable[[], dict[str, torch.Tensor]],
        off_policy: OffPolicy,
        callbacks: list[TrainerCallback],
    ) -> None:
        """`next_batch` is called once for each optimizer step and returns that step's `full_batch`."""
        self._next_batch = next_batch
        self._off_policy = off_policy
        self.drift = Drift()
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
        batch = {name: tensor.to(self.accelerator.device) for name, tensor in self._next_batch().items()}
        if self._off_policy.old_logprobs == "recompute":
            # Without this key TRL takes the logprobs of the loss's own forward pass. All micro-batches of
            # a step see the weights of its start, so that is prox, to the last bit.
            del batch["old_per_token_logps"]
        if self._off_policy.weighted:
            batch["advantages"] = self._weighted_advantages(batch)
        if self.beta != 0.0:
            batch["ref_per_token_logps"] = self._logprobs(self.ref_model, batch)
        # TRL shuffles rows with the process-wide generator, which other parts of the process may have
        # advanced; seeding it by step keeps a resumed run exact.
        torch.manual_seed(self.args.seed + self.state.global_step)
        return batch

    def _weighted_advantages(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(R, C) advantages times importance weights.

        The weights are not negative, so min(u A w, clip(u) A w) = w min(u A, clip(u) A): no loss of
        TRL's has to know of them.
        """
        log_ratio = self._logprobs(self.model, batch) - batch["sampling_per_token_logps"]
        mask = batch["completion_mask"] * batch["tool_mask"]
        weights = self._off_policy.weights(log_ratio, mask)
        self.drift.weighted(weights[mask == 1], self._off_policy.cap)
        advantages = batch["advantages"]
        return (advantages.unsqueeze(1) if advantages.dim() == 1 else advantages) * weights

    @torch.no_grad()
    def _logprobs(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(R, C) log probabilities of the completions under `model` without dropout, nats."""
        was_training = model.training
        model.eval()
        logprobs, _, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
            batch_size=self.args.per_device_train_batch_size,
        )
        model.train(was_training)
        out: torch.Tensor = logprobs
        return out

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._scored = scored[0].detach()
        return scored

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """TRL's loss; its logprobs also tell how far the policy has moved since the rollout."""
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        self.drift.add(self._scored - inputs["sampling_per_token_logps"], mask, inputs["version_min"])
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One micro-batch, forward and backward.

        Raises: TrainingError when its loss is not finite, before any weight changes.
        """
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        require_finite("loss", loss)
        return loss
