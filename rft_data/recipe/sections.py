"""The sections of a recipe, field by field. Checks are pure: no file is looked at here.

`recipe.py`, `online.py` and `modes.py` put them together into whole recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from explorers.engines.endpoint_options import endpoint_options
from explorers.engines.routing import checked_engines
from explorers.engines.vllm_options import check_options
from explorers.limits import recipe_limits
from rft_data.core.errors import RftError
from rft_data.core.lookup import suggest
from rft_data.core.words import SwapMode
from rft_data.recipe.names import SAMPLERS, known_name, known_operator, known_option
from rft_data.recipe.rewards import RewardComponent
from rft_data.recipe.running import Component, TransportSection
from rft_data.recipe.section import Section
from rft_data.recipe.workflow_args import PlayedWorkflow
from rft_data.sampler.make import make_policy

if TYPE_CHECKING:
    pass

ENGINES = ("transformers", "vllm", "routed", "openai")
"""Engines of ours; an engine of one's own is an import path."""
ENDPOINT = "openai"
"""The engine that sends messages to an endpoint; it has no weights."""

Operators = list[Annotated[dict[str, dict[str, object] | None], AfterValidator(known_operator)]]
"""As Data-Juicer writes its `process:` list: one `{operator: {arguments}}` per entry."""


def _known_sampler(sampler: Component) -> Component:
    known_name("sampler", sampler.use, SAMPLERS)
    if sampler.use in SAMPLERS:
        try:
            make_policy(sampler.use, sampler.args)
        except RftError as err:
            raise ValueError(str(err)) from err
    return sampler


Sampler = Annotated[Component, AfterValidator(_known_sampler)]


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
    words: list[str] = Field(default_factory=list, exclude_if=lambda given: not given)
    """Texts whose words become one token each, as those of arithmetic prompts are; other text has one per
    byte."""


class Model(Section):
    """The policy before any training: exactly one of `path` and `build`."""

    path: str | None = None
    """A Hugging Face folder, or a hub id where the network allows; with the engine `openai` the model's name
    at the endpoint."""
    build: TinyModel | None = None
    """A model with random weights, made here from the recipe's `seed`."""

    @model_validator(mode="after")
    def _one(self) -> Model:
        if (self.path is None) == (self.build is None):
            raise ValueError("give exactly one of 'path' and 'build'")
        return self


class BufferSection(Section):
    """The store of the experiences."""

    uri: str
    """A folder, an object-store URL (`s3://bucket/prefix`), or the address of a hub: of `rft hub`, which
    serves several runs at once, or in mode `train` of a running run."""
    durability: Literal["process", "power"] = "process"
    """The failures that a stored row survives: the death of every process, or of the machine too (slower)."""

    @property
    def is_hub(self) -> bool:
        """Whether another process owns the buffer, and `uri` is the address of its hub."""
        return self.uri.startswith("hub://")


class SelectorSection(Component):
    """The choice of the tasks that are explored next; see docs/selectors.md for names and arguments."""

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
    """Upkeep of the tasks while a run goes on; see docs/tasks.md."""

    every: int = Field(ge=1)
    """Optimizer steps between two rounds; a multiple of the stage's `checkpoint_every`."""
    ops: Operators
    """Tasks they drop are retired; retired ones they keep come back."""
    synthesis: SynthesisSection | None = None
    """Make new tasks out of played ones in each round; left out: none are made."""


class EngineSection(Section):
    """The engine that samples completions."""

    use: str
    """`vllm`; `transformers`, which is slower and needs no vLLM; `routed`, several engines as one (options
    `engines` and `repin_above`, docs/explorers.md); `openai`, a model behind an endpoint, to measure it or to
    collect its answers (options `base_url`, ...: docs/endpoints.md); or your own, by import path."""
    max_model_len: int = Field(default=256, ge=16)
    """Longest prompt and completion together, in tokens."""
    swap: SwapMode = "drain"
    """`drain`: running requests finish under the old weights; `continue`: they go on under the new ones;
    `recompute`: the same, and what they have read is computed again. See docs/weights.md."""
    transport: TransportSection = TransportSection()
    """Way of the published weights to the engine; the default fits the placement."""
    options: dict[str, object] = Field(default_factory=dict)
    """Passed through to the engine's own configuration class."""

    @field_validator("options")
    @classmethod
    def _has(cls, options: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        for name in options:
            known_option(str(info.data.get("use")), name)
        return options

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
        if self.use == "routed":
            for one in checked_engines(self.options)[0]:
                if one["use"] == ENDPOINT:
                    raise ValueError(f"the engine 'routed' sends token ids, and '{ENDPOINT}' takes messages")
                EngineSection(use=str(one["use"]), options=one.get("options", {}))
        if self.use == ENDPOINT:
            endpoint_options(self.options)
            self._weightless()
        return self

    def _weightless(self) -> None:
        """Raises: ValueError for what only an engine with weights has."""
        for name in ("max_model_len", "swap", "transport"):
            if getattr(self, name) != EngineSection.model_fields[name].default:
                raise ValueError(f"'{name}' is of engines with weights; '{ENDPOINT}' has none: remove it")


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
    min_tokens: int = Field(default=0, ge=0, exclude_if=lambda given: given == 0)
    """No completion ends before it has so many tokens; they are sampled without end tokens."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, exclude_if=lambda given: not given
    )
    """Texts that end a completion; the text itself is kept and trained on."""
    workflow: PlayedWorkflow = Component(use="single_turn")
    """What is done with a task to get a rollout; the default asks once and takes the answer. A function, a
    class of tools or an environment of your own: docs/worlds.md."""
    workflows: dict[str, PlayedWorkflow] = Field(default_factory=dict, exclude_if=lambda given: not given)
    """Further ones, by the name that a task gives in its field `workflow`."""
    render: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """A function of your own that shows a row on the page (`rft view --render`): `file.py:function`. It gets
    the row as plain values and returns a text, a mapping, or a list of rows; see docs/page.md."""
    limits: dict[str, object] = Field(default_factory=dict)
    """Deadlines, retries and spare rollouts: fields of `explorers.limits.Limits`."""
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = Field(
        default="auto", exclude_if=lambda given: given == "auto"
    )
    """What keeps programs that the model wrote from this machine: the first that holds; `none` in so many
    words: nothing. See docs/sandbox.md."""
    reward: list[RewardComponent] = Field(default_factory=list)
    """Components whose weighted sum is the reward of a rollout; the first says whether it passes. The reward
    that a workflow itself gives is a further part, `world`; with one, the list may be empty."""

    @field_validator("render")
    @classmethod
    def _own_function(cls, render: str | None) -> str | None:
        return None if render is None else known_name("renderer", render, ())

    @model_validator(mode="after")
    def _ends(self) -> ExplorerSection:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"'min_tokens' {self.min_tokens} is above 'max_tokens' {self.max_tokens}")
        return self

    @model_validator(mode="after")
    def _scored(self) -> ExplorerSection:
        if not self.reward and self.workflow.use == "single_turn":
            raise ValueError(
                "'reward' is empty, and the workflow 'single_turn' has none of its own; give at least one"
            )
        return self

    @field_validator("limits")
    @classmethod
    def _limited(cls, limits: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        try:
            recipe_limits(limits, info.data.get("group_size", 1))
        except RftError as err:
            raise ValueError(str(err)) from err
        return limits

    @property
    def base_url(self) -> str | None:
        """Address of the endpoint that serves the model; None where the run serves its weights itself."""
        return str(self.engine.options["base_url"]) if self.engine.use == ENDPOINT else None

    @property
    def decided_by(self) -> str:
        """The part of the reward that says whether a rollout passes."""
        return self.reward[0].stored_as if self.reward else "world"

    @property
    def least_members(self) -> int:
        """Fewest rollouts of a group that count as one."""
        least = self.limits.get("min_members")
        return least if isinstance(least, int) and least else self.group_size


class Evaluation(Section):
    """Measurements on held-out tasks: mean reward, pass rate and pass@k; see docs/modes.md."""

    limit: int = Field(ge=1)
    """At most this many held-out tasks, spread evenly over difficulties."""
    samples: int = Field(default=1, ge=1)
    """Answers per task: one is greedy; more are sampled as groups are, and pass@k is reported too."""
    threshold: float | None = Field(default=None, exclude_if=lambda given: given is None)
    """A rollout passes when its reward, as operators shaped it, is at least this; left out: when its first
    reward component (the task's own, where it names one) is at least 1.0."""


class OnlineEvaluation(Evaluation):
    """Measurements on held-out tasks before the first stage, after each, and during the online one."""

    every: int | None = Field(default=None, ge=1, exclude_if=lambda given: given is None)
    """Optimizer steps between two evaluations of the online stage, a multiple of `sync.every`; the best
    weights are kept in `best` of the run's folder. Left out: it is measured at its end."""
