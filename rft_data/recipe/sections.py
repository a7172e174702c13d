"""The sections of a recipe, field by field. Checks are pure: no file is looked at here.

`recipe.py`, `online.py` and `modes.py` put them together into whole recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from explorers.engines.vllm_options import check_options
from rft_data.core.errors import RftError
from rft_data.core.lookup import suggest
from rft_data.core.words import SwapMode
from rft_data.recipe.algorithms import find_algorithm
from rft_data.recipe.offline import DpoStage, KtoStage, RewardModelStage, SftStage
from rft_data.recipe.presets import OFFLINE
from rft_data.recipe.running import Component, OffPolicy
from rft_data.recipe.section import Section, check_only

if TYPE_CHECKING:
    from trainers.policy.objective import ObjectiveSettings

ENGINES = ("transformers", "vllm")
"""Engines of ours; an engine of one's own is an import path."""

Operators = list[dict[str, dict[str, object] | None]]
"""As Data-Juicer writes its `process:` list: one `{operator: {arguments}}` per entry."""


class TinyModel(Section):
    """A small Qwen2 built on this machine from the recipe's seed."""

    use: Literal["tiny_qwen2"]
    """The only model that can be built; anything else is given as `path`."""
    hidden_size: int = Field(default=128, ge=16)
    """Width of the hidden states, a multiple of `num_heads`; vLLM on a CPU needs 32 or more per head."""
    num_layers: int = Field(default=4, ge=1)
    """Number of transformer layers."""
    num_heads: int = Field(default=4, ge=1)
    """Attention heads per layer, also those of keys and values."""
    intermediate_size: int = Field(default=512, ge=16)
    """Width of the feed-forward part of each layer."""
    max_position_embeddings: int = Field(default=256, ge=32)
    """Longest sequence, in tokens."""


class Model(Section):
    """The policy before any training: exactly one of `path` and `build`."""

    path: str | None = None
    """A Hugging Face folder, or a hub id where the network allows."""
    build: TinyModel | None = None
    """A model with random weights, made here from the recipe's `seed`."""

    @model_validator(mode="after")
    def _one(self) -> Model:
        if (self.path is None) == (self.build is None):
            raise ValueError("give exactly one of 'path' and 'build'")
        return self


class BufferSection(Section):
    """Where experiences are stored."""

    uri: str
    """A folder, or an object-store URL (`s3://bucket/prefix`)."""
    durability: Literal["process", "power"] = "process"
    """What a stored row survives: the death of every process, or that of the machine too (slower)."""


class SelectorSection(Component):
    """Which tasks are explored next; see docs/selectors.md for names and arguments."""

    @model_validator(mode="after")
    def _known(self) -> SelectorSection:
        from rft_data.tasks.selectors import check_selector  # loads NumPy, which not every command needs

        try:
            check_selector(self.use, self.args)
        except RftError as err:
            raise ValueError(str(err)) from err
        return self


class SynthesisSection(Component):
    """New tasks made of played ones: `hinted`, or `package.module:function`."""

    parents: int = Field(default=16, ge=1)
    """Most tasks that get variants in one round."""
    target_pass_rate: float = Field(default=0.5, gt=0, lt=1)
    """Tasks whose pass rate is nearest to it come first."""


class TaskUpkeep(Section):
    """What is done with the tasks while a run goes on; see docs/tasks.md."""

    every: int = Field(ge=1)
    """Optimizer steps between two rounds; a multiple of the stage's `checkpoint_every`."""
    ops: Operators
    """Tasks they drop are retired; retired ones they keep come back."""
    synthesis: SynthesisSection | None = None
    """Make new tasks out of played ones in each round; left out: none are made."""


class TransportSection(Section):
    """How published weights reach the engine; the other ways (docs/weights.md) need a sender."""

    use: Literal["directory", "shm"] = "directory"
    """`directory`: each engine reads the published folder; `shm`: one copy per machine in shared memory."""


class EngineSection(Section):
    """What samples completions."""

    use: str
    """`vllm`; `transformers`, which is slower and needs no vLLM; or your own, by import path."""
    max_model_len: int = Field(default=256, ge=16)
    """Longest prompt and completion together, in tokens."""
    swap: SwapMode = "drain"
    """`drain`: running requests finish under the old weights; `continue`: they go on under the new ones;
    `recompute`: the same, and what they have read is computed again. See docs/weights.md."""
    transport: TransportSection = TransportSection()
    """Way of the published weights to the engine; the default reads the published folder."""
    options: dict[str, object] = Field(default_factory=dict)
    """Passed through to the engine's own configuration class."""

    @field_validator("use")
    @classmethod
    def _named(cls, use: str) -> str:
        if use not in ENGINES and ":" not in use:
            raise ValueError(
                f"engine '{use}' is not known;{suggest(use, ENGINES)} Built in: {', '.join(ENGINES)}. "
                "Your own: 'package.module:Class' or 'file.py:Class'."
            )
        return use

    @model_validator(mode="after")
    def _safe(self) -> EngineSection:
        if self.use == "vllm":
            check_options(self.options)
        return self


class RewardComponent(Section):
    """One part of the reward."""

    use: str
    """A built-in reward (docs/explorers.md), or `package.module:Class` of your own."""
    weight: float = 1.0
    """What its score is multiplied by in the sum that is the reward."""
    args: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments the reward is made with."""


class ExplorerSection(Section):
    """How tasks are played; see docs/explorers.md."""

    engine: EngineSection
    """The inference engine that samples completions."""
    group_size: int = Field(ge=1)
    """Rollouts per task that are compared with each other; the default is the algorithm's."""
    greedy_member: bool = False
    """Decode member 0 of every group greedily: a baseline (remax), which is not trained on."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; the trainer computes logprobs at the same one."""
    max_tokens: int = Field(ge=1)
    """Longest completion, in tokens."""
    workflow: Component = Component(use="single_turn")
    """What is done with a task to get a rollout; the default asks once and takes the answer."""
    limits: dict[str, object] = Field(default_factory=dict)
    """Deadlines, retries and spare rollouts: fields of `explorers.limits.Limits`."""
    reward: list[RewardComponent] = Field(min_length=1)
    """Components whose weighted sum is the reward of a rollout; the first says whether it passes."""

    @property
    def least_members(self) -> int:
        """Fewest rollouts of a group that count as one."""
        least = self.limits.get("min_members")
        return least if isinstance(least, int) and least else self.group_size


class KlSection(Section):
    """KL to a reference model, added to the loss; see docs/trainers.md."""

    coef: float = Field(gt=0)
    """What the KL estimate is multiplied by in the loss; `target` changes it during the run."""
    estimator: str = "k3"
    """How KL is estimated at a token: `k2`, `k3`, `abs` or `low_var`; `k1` only with `bias_correction`."""
    target: float | None = Field(default=None, gt=0)
    """Nats a token to steer to by changing `coef` (arXiv:1909.08593)."""
    horizon: int = Field(default=10_000, ge=1)
    """Rows in which `coef` moves by a fifth at most."""
    bias_correction: bool = False
    """Weigh by the ratio to the old policy: right off policy (arXiv:2512.02556)."""


class CriticSection(Section):
    """A critic beside the policy; see docs/ppo.md."""

    use: str = "shared"
    """`shared`: a head on the policy; `separate`: a second model."""
    learning_rate: float = 1e-5
    """Of the value head, or of the separate critic; it follows the policy's schedule."""
    coef: float = 0.1
    """What the value loss is multiplied by."""
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
    batch_ops: Operators = Field(default_factory=list)
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

    @property
    def objective(self) -> ObjectiveSettings:
        """What the stage says of its loss, as the trainer takes it."""
        settings = self.model_dump(include={"loss", "batch_ops", "kl", "critic", "lora"})
        return {
            "loss": settings["loss"],
            "batch_ops": settings["batch_ops"],
            "kl": settings["kl"],
            "critic": settings["critic"],
            "lora": settings["lora"],
            "reference": self.teacher,
        }

    @model_validator(mode="after")
    def _known(self, info: ValidationInfo) -> RlStage:
        try:
            preset = find_algorithm(self.algorithm, check_only=check_only(info))
        except RftError as err:
            raise ValueError(f"{err} Offline stages: {', '.join(OFFLINE)}.") from err
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


class Evaluation(Section):
    """What is measured on held-out tasks: mean reward, pass rate and pass@k; see docs/modes.md."""

    limit: int = Field(ge=1)
    """At most this many held-out tasks, spread evenly over difficulties."""
    samples: int = Field(default=1, ge=1)
    """Answers per task: one is greedy; more are sampled as groups are, and pass@k is reported too."""
    threshold: float | None = Field(default=None, exclude_if=lambda given: given is None)
    """A rollout passes when its reward, as operators shaped it, is at least this; left out: when its first
    reward component (the task's own, where it names one) is at least 1.0."""


class OnlineEvaluation(Evaluation):
    """What is measured on held-out tasks before the first stage, after each, and during the online one."""

    every: int | None = Field(default=None, ge=1, exclude_if=lambda given: given is None)
    """Optimizer steps between two evaluations of the online stage, a multiple of `sync.every`; the best
    weights are kept in `best` of the run's folder. Left out: it is measured at its end."""
