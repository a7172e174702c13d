"""The stages of a recipe: the one that trains by reinforcement, and which kind a stage is.

Offline stages are in `offline.py`. Checks are pure: no file is looked at here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rft_data.core.errors import RftError
from rft_data.recipe.algorithms import find_algorithm
from rft_data.recipe.names import KL_ESTIMATORS, LOSSES, known_batch_op, known_name
from rft_data.recipe.offline import DpoStage, KtoStage, RewardModelStage, SftStage
from rft_data.recipe.presets import OFFLINE
from rft_data.recipe.running import Component, OffPolicy
from rft_data.recipe.section import Section, check_only

if TYPE_CHECKING:
    from trainers.policy.objective import ObjectiveSettings

BatchOps = list[Annotated[dict[str, dict[str, object] | None], AfterValidator(known_batch_op)]]
"""Like `Operators`, of the operators on a training batch."""


class KlSection(Section):
    """KL to a reference model, added to the loss; see docs/trainers.md."""

    coef: float = Field(gt=0)
    """Factor of the KL estimate in the loss; `target` changes it during the run."""
    estimator: str = "k3"
    """How KL is estimated at a token: `k2`, `k3`, `abs` or `low_var`; `k1` only with `bias_correction`."""
    target: float | None = Field(default=None, gt=0)
    """Nats a token to steer to by changing `coef` (arXiv:1909.08593)."""
    horizon: int = Field(default=10_000, ge=1)
    """Rows in which `coef` moves by a fifth at most."""
    bias_correction: bool = False
    """Weigh by the ratio to the old policy: right off policy (arXiv:2512.02556)."""

    @model_validator(mode="after")
    def _pulls(self) -> KlSection:
        known_name("KL estimator", self.estimator, KL_ESTIMATORS, own=False)
        if self.estimator == "k1" and not self.bias_correction:
            raise ValueError(
                "'estimator' k1 has a gradient in a loss that is zero on average: no pull to the reference; "
                "take k2 or k3, set 'bias_correction', or give it as a penalty (batch_ops: kl_penalty)"
            )
        return self


class CriticSection(Section):
    """A critic beside the policy; see docs/ppo.md."""

    use: Literal["shared", "separate"] = "shared"
    """`shared`: a head on the policy; `separate`: a second model."""
    learning_rate: float = 1e-5
    """Learning rate of the value head, or of the separate critic; it follows the policy's schedule."""
    coef: float = 0.1
    """Factor of the value loss."""
    clip: float | None = 0.2
    """Furthest, in units of reward, that one step gains from moving a value."""
    warmup_steps: int = Field(default=0, ge=0)
    """First optimizer steps, which train the critic alone."""


class RlStage(Section):
    """Policy-gradient training on leased experiences. What is not given comes from the algorithm's preset."""

    algorithm: str
    """A name of docs/algorithms.md, or `package.module:NAME`."""
    groups_per_step: int = Field(ge=1)
    """Groups that one optimizer step trains on; rows per step are this times `group_size`."""
    steps: int = Field(ge=1)
    """Optimizer steps of the whole stage, resumed parts included."""
    checkpoint_every: int = Field(default=25, ge=1)
    """Optimizer steps between two checkpoints, from which a run resumes."""
    max_explored: float = Field(default=4.0, ge=1)
    """Groups explored per step, in multiples of groups_per_step, before a step goes ahead with fewer."""
    off_policy: OffPolicy = OffPolicy()
    """How rollouts of older weights are corrected for; by default by the stored logprobs alone."""
    loss: Component | None = None
    """One of docs/losses.md; left out: the preset's, or TRL's own (`trl.loss_type`)."""
    batch_ops: BatchOps = Field(default_factory=list)
    """Advantage functions over all rows of an optimizer step, in order; see docs/ppo.md."""
    kl: KlSection | None = None
    """KL term to a reference policy, added to the loss; left out: none, or the preset's."""
    critic: CriticSection | None = None
    """A critic, for algorithms with value estimates; left out: none, or the preset's."""
    teacher: str | None = None
    """Folder of the model whose logprobs are the reference's; without it, the stage's first policy."""
    lora: dict[str, object] | None = None
    """Passed through to PEFT's LoraConfig: only an adapter is trained and published; engines merge it."""
    trl: dict[str, object] = Field(default_factory=dict)
    """Passed through to TRL's GRPOConfig."""

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: Component | None) -> Component | None:
        if loss is not None:
            known_name("loss", loss.use, LOSSES)
        return loss

    @property
    def objective(self) -> ObjectiveSettings:
        """The stage's settings of its loss, as the trainer takes them."""
        settings = self.model_dump(include={"loss", "batch_ops", "kl", "critic", "lora"})
        return {
            "loss": settings["loss"],
            "batch_ops": settings["batch_ops"],
            "kl": settings["kl"],
            "critic": settings["critic"],
            "lora": settings["lora"],
            "reference": self.teacher,
        }

    @field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, algorithm: str, info: ValidationInfo) -> str:
        try:
            find_algorithm(algorithm, check_only=check_only(info))
        except RftError as err:
            raise ValueError(f"{err} Offline stages: {', '.join(OFFLINE)}.") from err
        return algorithm

    @model_validator(mode="after")
    def _taught(self, info: ValidationInfo) -> RlStage:
        preset = find_algorithm(self.algorithm, check_only=check_only(info))
        if "teacher" in preset.needs and self.teacher is None:
            raise ValueError(f"'{self.algorithm}' learns from a teacher; give 'teacher', a model's folder")
        return self


def _kind(stage: object) -> str:
    name = stage.get("algorithm") if isinstance(stage, dict) else getattr(stage, "algorithm", None)
    return str(name) if name in OFFLINE else "rl"


Stage = Annotated[
    Annotated[SftStage, Tag("sft")]
    | Annotated[DpoStage, Tag("dpo")]
    | Annotated[KtoStage, Tag("kto")]
    | Annotated[RewardModelStage, Tag("reward_model")]
    | Annotated[RlStage, Tag("rl")],
    Discriminator(_kind),
]
