"""TRL's GRPO trainer fed from leased experiences instead of its own generation.

Batches are ours; every optimizer and precision option is TRL's, and so is the loss, unless the objective
names one of ours. The old policy of the ratio is the one that sampled (its stored logprobs; arXiv:2402.03300,
equation 3), or the policy at the start of the step (arXiv:2505.24298). One lease is one optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig

from trainers.models.adapters import adapter_scales, read_adapter
from trainers.policy.collate import trained
from trainers.policy.critic import Critic, CriticPlan
from trainers.policy.dealt_grpo import DealtGRPOTrainer, Scored
from trainers.policy.drift import Drift
from trainers.policy.losses.aggregation import aggregate, expert_share
from trainers.policy.losses.context import loss_context
from trainers.policy.losses.loss import Aggregation, Loss
from trainers.policy.objective import TRLS, Objective
from trainers.policy.off_policy import OffPolicy
from trainers.policy.step_kl import StepKl
from trainers.policy.token_values import KeptTokens
from trainers.policy.whole_lease import run_batch_ops
from trainers.ranks.ranks import gathered

if TYPE_CHECKING:
    from peft import LoraConfig


def _no_reward(prompts: list[object], **_: object) -> list[float]:
    """The reward function that TRL requires; our rows have their rewards already."""
    return [0.0] * len(prompts)


class ExperienceGRPOTrainer(DealtGRPOTrainer):
    """GRPO, or another policy-gradient objective, on the batches that `next_batch` returns."""

    def __init__(
        self,
        model: PreTrainedModel,
        args: GRPOConfig,
        tokenizer: PreTrainedTokenizerBase,
        next_batch: Callable[[], dict[str, torch.Tensor]],
        off_policy: OffPolicy,
        callbacks: list[TrainerCallback],
        objective: Objective = TRLS,
        lora: LoraConfig | None = None,
    ) -> None:
        """Prepare TRL's trainer.

        Args:
            next_batch: returns the `full_batch` of the next optimizer step; called once for each step.
            lora: None: every weight is trained.
        Raises: RecipeError for an adapter of a layer that is not linear.
        """
        self._next_batch = next_batch
        self._off_policy = off_policy
        self._objective = objective
        self._step_kl = None if objective.kl is None else StepKl(objective.kl)
        self.drift = Drift()
        self.tokens = KeptTokens()
        self.critic: Critic | None = None
        beta = args.beta
        if objective.needs_reference and not beta:
            args.beta = 1.0  # TRL loads a reference model only where beta is not 0
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=args,
            train_dataset=_one_step(args),
            processing_class=tokenizer,
            callbacks=callbacks,
            peft_config=lora,
        )
        self.beta = args.beta = beta
        self.remove_callback(PrinterCallback)  # it would print a line per step on stdout
        adapter_scales(self.model)  # raises for an adapter that could not be published

    def train_critic(self, plan: CriticPlan, *, split: bool = False) -> None:
        """Train a critic beside the policy; called once, before training and before the policy is split.

        Args: split: one that is a model of its own is split over the ranks.
        Raises: ResumeError when the checkpoint to continue from has none.
        """
        self.critic = plan.build(self.model, self.args, self.accelerator.device, split=split)
        for callback in self.critic.callbacks:
            self.add_callback(callback)

    def _generate_and_score_completions(self, inputs: object) -> dict[str, torch.Tensor]:
        """The batch of one optimizer step, in the form that TRL's loss reads."""
        batch = {name: tensor.to(self.accelerator.device) for name, tensor in self._next_batch().items()}
        if self._off_policy.old_logprobs == "recompute":
            # Without this key TRL uses the logprobs of the loss's own forward pass. All micro-batches of a
            # step see the weights of its start, so these are the logprobs of prox, to the last bit.
            del batch["old_per_token_logps"]
        prox, values = self._before_step(batch)
        if self.beta != 0.0 or self._objective.needs_reference:
            batch["ref_per_token_logps"] = self._logprobs(self.ref_model, batch)
        batch |= run_batch_ops(batch, self._objective.batch_ops, prox, values)
        if self.critic is not None and values is not None:
            self._keep_values(self.critic, batch, values)
        if self._off_policy.weighted and prox is not None:
            batch["advantages"] = self._weighted_advantages(batch, prox)
        batch["advantages"] = batch["advantages"] * batch.pop("advantage_factor")
        if "expert_share" in self._objective.needs and self._objective.loss is not None:
            batch["expert_share"] = expert_share(
                trained(batch).float(),
                batch["is_expert"],
                self._objective.loss.aggregation,
                rollouts=batch["num_rollouts_in_batch"],
                share=batch["rollout_share"],
            )
        # Dropout draws from the process-wide generator, which other parts of the process also use. Seeding
        # it by step keeps a resumed run exact.
        torch.manual_seed(self.args.seed + self.state.global_step)
        return batch

    def _before_step(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(R, C) logprobs of the policy and values of the critic at the step's start, where needed."""
        critic = self.critic
        wants_prox = self._off_policy.weighted or "prox" in self._needed_by_batch_ops
        if critic is None:
            return (self._logprobs(self.model, batch) if wants_prox else None), None
        critic.start_step(self.state.global_step)
        reads_policy = wants_prox or critic.model.reads_policy_pass

        def score(part: dict[str, torch.Tensor]) -> list[torch.Tensor]:
            prox = [self._scored_tokens(self.model, part)] if reads_policy else []
            return [*prox, self._values(critic, part)]

        was_training = self.model.training
        self.model.eval()
        *prox, values = self._over_lease(batch, score)
        self.model.train(was_training)
        return (prox[0] if prox else None), values

    def _values(self, critic: Critic, part: dict[str, torch.Tensor]) -> torch.Tensor:
        with self.accelerator.autocast():
            return critic.model.values(part)

    def _keep_values(self, critic: Critic, batch: dict[str, torch.Tensor], values: torch.Tensor) -> None:
        """Put the values into the batch, for the loss, and log how good they are."""
        batch["values"] = values
        for name, value in critic.metrics(batch, _own_tokens(batch)).items():
            self._metrics["train"][name].append(value)

    @property
    def _needed_by_batch_ops(self) -> frozenset[str]:
        return frozenset().union(*(op.needs for op in self._objective.batch_ops))

    def _weighted_advantages(self, batch: dict[str, torch.Tensor], prox: torch.Tensor) -> torch.Tensor:
        """(R, C) advantages times importance weights.

        The weights are not negative, so min(u A w, clip(u) A w) = w min(u A, clip(u) A): TRL's losses need no
        change.
        """
        mask = trained(batch)
        weights = self._off_policy.weights(prox - batch["sampling_per_token_logps"], mask)
        self.drift.weighted(weights[mask == 1], self._off_policy.cap)
        advantages = batch["advantages"]
        return (advantages.unsqueeze(1) if advantages.dim() == 1 else advantages) * weights

    def _get_per_token_logps_and_entropies(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        kept: int,
        **kwargs: object,
    ) -> Scored:
        scored = super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, kept, **kwargs)
        self._scored = scored[:2]
        return scored

    def _compute_loss(self, model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The objective's loss; its logprobs are also compared with those of the policy that sampled."""
        own = self._objective.loss
        if own is None:
            loss: torch.Tensor = super()._compute_loss(model, {**inputs, **self._image_inputs(inputs)})
            logprobs, entropies = self._scored
        else:
            logprobs, entropies, balance = self._scored_with_entropies(model, inputs)
            loss = self._own_loss(own, inputs, logprobs, entropies)
            if balance is not None:  # of a mixture of experts: the mean over micro-batches, as in TRL
                loss = loss + self.router_aux_loss_coef * balance / self.args.gradient_accumulation_steps
        if self._step_kl is not None:
            loss = loss + self._kl(self._step_kl, inputs, logprobs)
        if self.critic is not None:
            loss = self._with_value_loss(self.critic, loss, inputs)
        if self.accelerator.is_main_process:
            self.tokens.add(inputs, logprobs, entropies)
        moved = logprobs.detach() - inputs["sampling_per_token_logps"]
        self.drift.add(
            gathered(moved, self.accelerator),
            gathered(_own_tokens(inputs), self.accelerator),
            gathered(inputs["version_min"], self.accelerator),
        )
        del self._scored
        return loss

    def _own_loss(
        self,
        own: Loss,
        inputs: dict[str, torch.Tensor],
        logprobs: torch.Tensor,
        entropies: torch.Tensor,
    ) -> torch.Tensor:
        """A loss of ours, reduced over the whole optimizer step, with the entropy bonus (nats a token)."""
        context = loss_context(inputs, logprobs, entropies, self.state.global_step)
        terms, measured = own.with_metrics(context)
        loss = self._reduced(terms, own.aggregation, inputs, context.mask)
        self._metrics["train"]["policy_loss"].append(self._mean_over_ranks(loss))
        for name, values in measured.items():
            mean = self._mean_over_ranks(self._reduced(values.detach(), "token_mean", inputs, context.mask))
            self._metrics["train"][f"loss/{name}"].append(mean * self.args.gradient_accumulation_steps)
        entropy = self._reduced(entropies, "token_mean", inputs, _own_tokens(inputs))
        of_step = self._mean_over_ranks(entropy) * self.args.gradient_accumulation_steps
        self._metrics["train"]["entropy"].append(of_step)
        return loss - self.args.entropy_coef * entropy if self.args.entropy_coef else loss

    def _kl(self, step_kl: StepKl, inputs: dict[str, torch.Tensor], logprobs: torch.Tensor) -> torch.Tensor:
        mask = _own_tokens(inputs)
        kl = self._reduced(step_kl.per_token(inputs, logprobs, mask), "token_mean", inputs, mask)
        of_step = self._mean_over_ranks(kl)
        self._metrics["train"]["kl"].append(of_step * self.args.gradient_accumulation_steps)
        coef = step_kl.coef
        if step_kl.is_adaptive:
            self._metrics["train"]["kl_coef"].append(coef)
            step_kl.add(of_step)
            if self.accelerator.sync_gradients:  # the last micro-batch: the next step has another coefficient
                step_kl.end_step(int(inputs["num_rollouts_in_batch"]))
        return coef * kl

    def _with_value_loss(
        self, critic: Critic, policy_loss: torch.Tensor, inputs: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        with self.accelerator.autocast():
            terms = critic.loss(inputs)
        loss = self._reduced(terms, "token_mean", inputs, _own_tokens(inputs))
        of_step = self._mean_over_ranks(loss) * self.args.gradient_accumulation_steps
        self._metrics["train"]["critic/loss"].append(of_step)
        # Times 0, not left out: DistributedDataParallel waits for a gradient of every parameter.
        return loss + (policy_loss * 0.0 if critic.in_warmup(self.state.global_step) else policy_loss)

    def create_optimizer(self, *args: object, **kwargs: object) -> torch.optim.Optimizer:
        """TRL's optimizer, with the critic's parameters in a group of their own."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and self.critic is not None:
            self.critic.give_own_rate(optimizer)
        return optimizer

    def _reduced(
        self, per_token: torch.Tensor, kind: Aggregation, inputs: dict[str, torch.Tensor], mask: torch.Tensor
    ) -> torch.Tensor:
        return aggregate(
            per_token,
            mask,
            kind,
            tokens=inputs["num_items_in_batch"],
            rollouts=inputs["num_rollouts_in_batch"],
            share=inputs["rollout_share"],
            world=self.accelerator.num_processes,
        )

    def load_checkpoint_extras(self, checkpoint: Path) -> None:
        """Load the parts of a checkpoint that TRL does not: an adapter, an adaptive KL coefficient."""
        if adapter_scales(self.model):
            read_adapter(self.model, checkpoint)
        if self._step_kl is not None:
            self._step_kl.load(checkpoint)

    def _save_checkpoint(self, model: PreTrainedModel, trial: object) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if self.critic is not None:
            self.critic.save(folder, write=self.accelerator.is_main_process)
        super()._save_checkpoint(model, trial)
        if self._step_kl is not None and self.accelerator.is_main_process:
            self._step_kl.save(folder)


def _one_step(args: GRPOConfig) -> Dataset:
    """Rows of which one pass is exactly one optimizer step, so that every step ends an epoch."""
    return Dataset.from_dict({"prompt": [""] * (args.generation_batch_size // args.num_generations)})


def _own_tokens(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, C), 1 where a token that a policy of ours sampled is trained on: an expert's is not."""
    return trained(batch) * ~batch["is_expert"].unsqueeze(1)
