"""The objective of an optimizer step: a loss, the batch operators before it, and a KL term added to it.

The settings of a recipe's stage are checked here, and arguments bound. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from trl import GRPOConfig

from rft_data.core.errors import RecipeError
from trainers.policy.batch_ops import make_batch_ops
from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.batch_ops.bind import BatchOpSpec
from trainers.policy.kl_term import KlTerm, kl_term
from trainers.policy.losses import make_loss
from trainers.policy.losses.loss import Loss
from trainers.policy.off_policy import UNCORRECTED, OffPolicy

_TRL_LOSS_OPTIONS: Mapping[str, object] = {
    "loss_type": None,
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "beta": 0.0,
    "importance_sampling_level": "token",
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "use_adaptive_entropy": False,
    "use_bias_correction_kl": True,
    "max_completion_length": None,
    "sapo_temperature_pos": None,
    "sapo_temperature_neg": None,
    "vespo_k_pos": None,
    "vespo_lambda_pos": None,
    "vespo_k_neg": None,
    "vespo_lambda_neg": None,
}
"""Options of `trl` that only TRL's own losses read, with the values that have no effect."""


class LossChoice(TypedDict):
    """A stage's `loss: {use, args}`."""

    use: str
    args: NotRequired[Mapping[str, object] | None]


class ObjectiveSettings(TypedDict, total=False):
    """Settings of a recipe's stage for its loss; a setting that is missing or None is not made."""

    loss: LossChoice | None
    batch_ops: Sequence[BatchOpSpec] | None
    kl: Mapping[str, object] | None
    """Fields of KlTerm."""
    critic: Mapping[str, object] | None
    """Fields of CriticSettings."""
    reference: str | None
    """Folder of the model that KL terms and teachers' logprobs are of; None: the policy before training."""
    lora: Mapping[str, object] | None
    """Fields of PEFT's LoraConfig; None: every weight is trained."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective of one stage. The default is TRL's own loss on the stored advantages."""

    loss: Loss | None = None
    """The loss with its arguments bound; None: TRL's `loss_type`."""
    batch_ops: tuple[BatchOp, ...] = ()
    kl: KlTerm | None = None
    """Added to either loss."""

    @property
    def needs(self) -> frozenset[str]:
        """Inputs of the loss and the batch operators beside the lease."""
        return frozenset().union(self.loss.needs if self.loss else (), *(op.needs for op in self.batch_ops))

    @property
    def needs_reference(self) -> bool:
        """Whether logprobs of a reference model are needed, also where TRL's `beta` is 0."""
        return self.kl is not None or "ref" in self.needs


TRLS = Objective()
"""TRL's own loss, without batch operators or a KL term of ours."""


def make_objective(
    settings: ObjectiveSettings,
    options: Mapping[str, object],
    config: GRPOConfig,
    off_policy: OffPolicy = UNCORRECTED,
) -> Objective:
    """The objective that a stage's `loss`, `batch_ops` and `kl` describe.

    Args:
        options: the recipe's `trl: {...}`; config: the GRPOConfig made from it.
        off_policy: the stage's corrections.
    Raises: RecipeError, UnknownComponentError for a setting that is unknown, does not fit the others, or
        would have no effect.
    """
    given, kl = settings.get("loss"), settings.get("kl")
    objective = Objective(
        loss=None if given is None else make_loss(given["use"], given.get("args") or {}),
        batch_ops=make_batch_ops(settings.get("batch_ops") or ()),
        kl=None if kl is None else kl_term(kl),
    )
    if given is not None:
        _refuse_options_without_effect(given["use"], options)
    if objective.loss is not None:
        _refuse_corrections(objective.loss, off_policy)
    if objective.kl is not None and config.beta != 0.0:
        raise RecipeError(
            f"the stage has 'kl' and trl.beta {config.beta:g}: two KL terms. Remove one; 'kl' works with "
            "every loss."
        )
    return objective


def _refuse_corrections(loss: Loss, off_policy: OffPolicy) -> None:
    """Raise a RecipeError for corrections that the loss would apply twice, or not at all."""
    if loss.weighs and off_policy.weighted:
        raise RecipeError(
            f"off_policy.importance is '{off_policy.importance}', and the loss has weights of its own, "
            "or reads no advantages to weigh. Set importance to 'none', or choose another loss."
        )
    if loss.of_sampler and off_policy.old_logprobs == "recompute":
        raise RecipeError(
            "off_policy.old_logprobs is 'recompute', and the stage's loss weighs or clips by the ratio to "
            "the policy that sampled, which 'recompute' replaces by 1. Set old_logprobs to 'rollout'."
        )


def _refuse_options_without_effect(loss: str, options: Mapping[str, object]) -> None:
    idle = [name for name, none in _TRL_LOSS_OPTIONS.items() if options.get(name, none) != none]
    if idle:
        raise RecipeError(
            f"trl: {', '.join(idle)} only change TRL's losses, and this stage's loss is '{loss}'; remove "
            "them, or choose TRL's with 'loss: null'. The loss has arguments of its own (loss: {use, args}), "
            "and there is a KL term for every loss (kl: {coef})."
        )
