"""Whole recipes: what every one has, and what each mode adds. Rules across sections live here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from rft_data.recipe.algorithms import algorithm_of
from rft_data.recipe.offline import HeldoutPairs, OfflineStage, SftStage
from rft_data.recipe.presets import sets_advantage, with_preset
from rft_data.recipe.running import (
    Component,
    Deadlines,
    LateRewards,
    Monitor,
    OperatorLimits,
    PlacementSection,
    Sync,
)
from rft_data.recipe.section import Section
from rft_data.recipe.sections import (
    BufferSection,
    Evaluation,
    Experts,
    ExplorerSection,
    Model,
    Operators,
    RewardComponent,
    RlStage,
    Rollouts,
    SelectorSection,
    Stage,
    Taskset,
    TaskUpkeep,
)


class Recipe(Section):
    """What every recipe has; its `mode` says which of those below it is."""

    recipe: Literal[1]
    """Format version."""
    mode: str
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Also the run id and the default run folder."""
    seed: int = 0
    buffer: BufferSection
    allow_unsafe_ops: bool = False
    """Let in Data-Juicer operators outside the shipped allow-list; some run their arguments as code."""
    op_limits: dict[str, OperatorLimits] = Field(default_factory=dict)
    """How single operators of `task_ops` and `experience_ops` run, by name; see docs/operators.md."""
    _references: dict[tuple[Any, ...], str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _limited(self) -> Self:
        upkeep = getattr(self, "task_upkeep", None)
        lists = [getattr(self, key, []) for key in ("task_ops", "experience_ops")]
        lists.append(upkeep.ops if upkeep else [])
        known = {name for operators in lists for operator in operators for name in operator}
        if unknown := sorted(self.op_limits.keys() - known):
            raise ValueError(f"'op_limits' names operators {unknown}; the lists have {sorted(known)}")
        return self

    def keep_references(self, found: Mapping[tuple[Any, ...], str]) -> None:
        """Remember which values came from the environment, and from which reference."""
        self._references.update(found)

    @property
    def references(self) -> Mapping[tuple[Any, ...], str]:
        """Which values came from the environment, by their place, and from which reference."""
        return self._references

    def saved(self) -> dict[str, Any]:
        """The resolved recipe as JSON values, with environment references put back (they may be secrets)."""
        tree: dict[str, Any] = self.model_dump(mode="json")
        for loc, reference in self._references.items():
            node: Any = tree
            for part in loc[:-1]:
                node = node[part]
            node[loc[-1]] = reference
        return tree


class TasksRecipe(Recipe):
    """What every recipe with tasks has."""

    tasks: list[Taskset] = Field(min_length=1)
    task_ops: Operators = Field(default_factory=list)


class RunRecipe(Recipe):
    """What every run on a model has."""

    run_dir: str
    placement: PlacementSection = Field(default_factory=PlacementSection)
    deadlines: Deadlines = Field(default_factory=Deadlines)

    @property
    def books(self) -> str:
        """The run id under which groups, leases and versions are written."""
        return self.name


class PlayingRecipe(RunRecipe, TasksRecipe):
    """What every run with explorers has."""

    model: Model
    selector: SelectorSection
    explorer: ExplorerSection
    experience_ops: Operators

    @model_validator(mode="after")
    def _rewards(self) -> Self:
        unique_rewards(self.explorer.reward)
        return self


class OnlineRecipe(PlayingRecipe):
    """Explore and train."""

    mode: Literal["online"]
    experts: list[Experts] = Field(default_factory=list)
    sync: Sync = Field(default_factory=Sync)
    sampler: Component = Component(use="fifo")
    """Which groups train next; see docs/sampler.md."""
    rewards: LateRewards | None = None
    """Keep groups open whose rewards come later; without it they are judged as they come home."""
    monitor: Monitor = Field(default_factory=Monitor)
    stages: list[Stage] = Field(min_length=1)
    """Offline stages first, then one online stage."""
    task_upkeep: TaskUpkeep | None = None
    evaluation: Evaluation

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: Any) -> Any:
        return with_preset(tree, explores=True)

    @property
    def feedback_join(self) -> Mapping[str, Any] | None:
        """The arguments of the operator that fills rewards from feedback; None without one."""
        found = [
            args or {} for op in self.experience_ops for name, args in op.items() if name == "feedback_mapper"
        ]
        return next((args for args in found if args.get("into", "reward") == "reward"), None)

    @model_validator(mode="after")
    def _rewards_can_come_later(self) -> OnlineRecipe:
        if self.rewards is None:
            return self
        if self.feedback_join is None:
            raise ValueError(
                "'rewards' waits for feedback that no operator joins; put 'feedback_mapper: {}' first in "
                "'experience_ops'"
            )
        if self.sync.max_staleness < 1:
            raise ValueError(
                "'rewards' needs 'sync.max_staleness' of at least 1: a synchronous run that is broken off "
                "explores its step anew, and what was said about the first rollouts would be lost"
            )
        return self

    @model_validator(mode="after")
    def _upkeep_at_checkpoints(self) -> OnlineRecipe:
        last = self.stages[-1]
        if self.task_upkeep and isinstance(last, RlStage) and self.task_upkeep.every % last.checkpoint_every:
            raise ValueError(
                f"'task_upkeep.every' is {self.task_upkeep.every}; give a multiple of 'checkpoint_every' "
                f"({last.checkpoint_every}), so that a resumed run plays the same tasks"
            )
        return self

    @model_validator(mode="after")
    def _coherent(self) -> OnlineRecipe:
        kinds = [stage.algorithm for stage in self.stages]
        *before, last = self.stages
        if not isinstance(last, RlStage) or any(isinstance(stage, RlStage) for stage in before):
            raise ValueError(f"'stages' must be offline stages and then one that explores, found {kinds}")
        if not self.experts and any(isinstance(s, SftStage) and s.data is None for s in before):
            raise ValueError(
                "an 'sft' stage needs 'experts' to make the solutions it trains on, or 'data' to choose "
                "stored rows"
            )
        named = {taskset.name for taskset in self.tasks}
        unknown = {name for section in self.experts for name in section.tasksets} - named
        if unknown:
            raise ValueError(f"'experts' names tasksets {sorted(unknown)}; there are {sorted(named)}")
        fits_algorithm(last, self.explorer.group_size)
        if "experts" in algorithm_of(last.algorithm).needs and not self.experts:
            raise ValueError(f"'{last.algorithm}' imitates experts beside its own rollouts; give 'experts'")
        if not any(map(sets_advantage, self.experience_ops)):
            raise ValueError("'experience_ops' has no advantage operator; end it with one")
        return self


class ExploreRecipe(PlayingRecipe):
    """Explore with a fixed policy, for a training at another time or elsewhere."""

    mode: Literal["explore"]
    groups: int = Field(ge=1)
    """How many groups to play."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Groups between two records of the selector's state."""


class TrainRecipe(RunRecipe):
    """Train on the groups that another run explored and stored in the same buffer."""

    mode: Literal["train"]
    model: Model
    explored_by: str
    """Name of the run that explored; its books are continued."""
    group_size: int = Field(ge=1)
    """Rollouts per group there."""
    temperature: float = Field(default=1.0, gt=0)
    """At which they were sampled."""
    experience_ops: Operators
    """The same as there: they name the verdicts that are trained on."""
    sampler: Component = Component(use="fifo")
    monitor: Monitor = Field(default_factory=Monitor)
    stages: list[RlStage] = Field(min_length=1, max_length=1)

    @property
    def books(self) -> str:
        """The exploring run's."""
        return self.explored_by

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: Any) -> Any:
        return with_preset(tree, explores=False)

    @model_validator(mode="after")
    def _coherent(self) -> TrainRecipe:
        fits_algorithm(self.stages[0], self.group_size)
        return self


class OfflineRecipe(RunRecipe):
    """Train on what the buffer holds; nothing is explored."""

    mode: Literal["offline"]
    model: Model
    heldout: HeldoutPairs | None = None
    """Measured before the first stage and after each; left out: nothing is held out."""
    stages: list[OfflineStage] = Field(min_length=1)
    """One after the other; each goes on from the policy before it."""

    @model_validator(mode="after")
    def _chosen(self) -> OfflineRecipe:
        for number, stage in enumerate(self.stages):
            if isinstance(stage, SftStage) and stage.data is None:
                raise ValueError(
                    f"stage {number} ('sft') needs 'data', which says what to imitate; for example "
                    "data: {min_reward: 1.0}"
                )
        return self


class EvalRecipe(RunRecipe, TasksRecipe):
    """Measure models, or the checkpoints of runs, on held-out tasks."""

    mode: Literal["eval"]
    models: list[str] = Field(min_length=1)
    """Hugging Face folders, or patterns of such (`runs/x/checkpoints/checkpoint-*`)."""
    explorer: ExplorerSection
    evaluation: Evaluation

    @model_validator(mode="after")
    def _rewards(self) -> EvalRecipe:
        unique_rewards(self.explorer.reward)
        return self


class DataRecipe(TasksRecipe):
    """Load, clean and score data; no model."""

    mode: Literal["data"]
    rollouts: list[Rollouts] = Field(default_factory=list)
    reward: list[RewardComponent] = Field(default_factory=list)

    @model_validator(mode="after")
    def _coherent(self) -> DataRecipe:
        if self.rollouts and not self.reward:
            raise ValueError("'rollouts' are to be scored: give at least one 'reward'")
        unique_rewards(self.reward)
        unknown = {rollouts.taskset for rollouts in self.rollouts} - {taskset.name for taskset in self.tasks}
        if unknown:
            raise ValueError(f"'rollouts' names tasksets {sorted(unknown)} that 'tasks' does not have")
        return self


def unique_rewards(components: list[RewardComponent]) -> None:
    """Raises: ValueError when two components share a name, under which their parts are stored."""
    names = [component.use for component in components]
    if len(names) > len(set(names)):
        raise ValueError(f"'reward' uses one component twice: {names}")


def fits_algorithm(stage: RlStage, group_size: int) -> None:
    """Raises: ValueError when the stage's algorithm cannot work on such groups, or has a temperature."""
    least = algorithm_of(stage.algorithm).least_group
    if group_size < least:
        raise ValueError(
            f"'group_size' is {group_size}; {stage.algorithm} compares rollouts of one task: "
            f"give at least {least}"
        )
    if "temperature" in stage.trl:
        raise ValueError("the trainer's temperature is that of the rollouts; remove it from 'trl'")


MODES: Mapping[str, type[Recipe]] = {
    "online": OnlineRecipe,
    "explore": ExploreRecipe,
    "train": TrainRecipe,
    "offline": OfflineRecipe,
    "eval": EvalRecipe,
    "data": DataRecipe,
}
