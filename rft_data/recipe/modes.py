"""Whole recipes: what every one has, and what each mode adds. Rules across sections live here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from rft_data.recipe.algorithms import algorithm_of
from rft_data.recipe.offline import AnyOfflineStage, HeldoutPairs, OfflineStage, SftStage
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
    ExplorerSection,
    Model,
    Operators,
    RewardComponent,
    RlStage,
    SelectorSection,
    Stage,
    TaskUpkeep,
)
from rft_data.recipe.tasksets import Experts, Rollouts, Taskset


class Recipe(Section):
    """A recipe that was read and checked; its `mode` says of which subclass it is."""

    recipe: Literal[1]
    """Version of the recipe format; 1 is the only one."""
    mode: str
    """What the recipe does: online, explore, train, offline, eval or data; it decides which keys are allowed.
"""
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Also the run id, under which all rows of the run are stored."""
    seed: int = 0
    """Every random choice of the run follows from it: model weights, tasks drawn, sampling, shuffling."""
    buffer: BufferSection
    """The buffer that the run reads and writes."""
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
    """The tasksets, read in this order and stored in the buffer."""
    task_ops: Operators = Field(default_factory=list)
    """Data-Juicer operators that clean the tasks before anything is played; see docs/tasks.md."""


class RunRecipe(Recipe):
    """What every run on a model has."""

    run_dir: str
    """Folder for checkpoints, weights, log and summary, relative to the working directory."""
    placement: PlacementSection = Field(default_factory=PlacementSection)
    """Where explorers and trainer run; the default is inside this process, one after the other."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """Longest waits for each part of the run, in seconds, before it counts as stalled."""

    several_processes: ClassVar[bool] = False
    """Whether torchrun may start the trainer as several processes."""

    @property
    def run_id(self) -> str:
        """The run id under which groups, leases and versions are written."""
        return self.name

    @property
    def feedback_port(self) -> int | None:
        """Where the run's hub takes delayed rewards in; None: it takes none."""
        return None

    @property
    def leases_by(self) -> Component:
        """The sampler that leases the run's groups; nothing is leased where a mode has none."""
        return Component(use="fifo")


class PlayingRecipe(RunRecipe, TasksRecipe):
    """What every run with explorers has."""

    model: Model
    """The policy that plays, before any training."""
    selector: SelectorSection
    """Which tasks are played next, by name and arguments; see docs/selectors.md."""
    explorer: ExplorerSection
    """Engine, group size, sampling and reward: how each task is played."""
    experience_ops: Operators
    """Operators that filter rollouts, shape rewards and set advantages, in order; see docs/operators.md."""

    @model_validator(mode="after")
    def _rewards(self) -> Self:
        unique_rewards(self.explorer.reward)
        return self


class OnlineRecipe(PlayingRecipe):
    """Explore and train."""

    several_processes: ClassVar[bool] = True

    mode: Literal["online"]
    """Explore and train in one loop (`rft run`)."""
    experts: list[Experts] = Field(default_factory=list)
    """Worked solutions to store before the first stage, for imitation; none by default."""
    sync: Sync = Field(default_factory=Sync)
    """How often weights are published and how stale a rollout may be; the default is synchronous on-policy.
"""
    sampler: Component = Component(use="fifo")
    """Which groups train next; see docs/sampler.md."""
    rewards: LateRewards | None = None
    """Wait for rewards that come as feedback; left out: a group is judged when its rollouts are stored."""
    monitor: Monitor = Field(default_factory=Monitor)
    """Trackers and the Prometheus endpoint; the default writes TensorBoard files."""
    stages: list[Stage] = Field(min_length=1)
    """Offline stages first, then one online stage."""
    task_upkeep: TaskUpkeep | None = None
    """Retire and synthesise tasks while the run goes on; left out: the task table stays as it is."""
    evaluation: Evaluation
    """How accuracy on held-out tasks is measured, before the first stage and after each."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: Any) -> Any:
        return with_preset(tree, explores=True)

    @property
    def feedback_port(self) -> int | None:
        """As `rewards` says."""
        return None if self.rewards is None else self.rewards.port

    @property
    def leases_by(self) -> Component:
        """As the recipe says."""
        return self.sampler

    @property
    def rl(self) -> RlStage:
        """The stage that trains by reinforcement, the last."""
        last = self.stages[-1]
        assert isinstance(last, RlStage)  # noqa: S101 - checked when the recipe was read
        return last

    @property
    def offline_stages(self) -> list[AnyOfflineStage]:
        """The stages before it."""
        return [stage for stage in self.stages if not isinstance(stage, RlStage)]

    @property
    def has_experts(self) -> bool:
        """Whether somebody makes solutions."""
        return bool(self.experts)

    @property
    def greedy_member(self) -> bool:
        """Whether member 0 of every group is decoded greedily."""
        return self.explorer.greedy_member

    @property
    def group_size(self) -> int:
        """Rollouts per group."""
        return self.explorer.group_size

    @property
    def least_members(self) -> int:
        """Fewest rollouts of a group that count as one."""
        return self.explorer.least_members

    @property
    def temperature(self) -> float:
        """At which rollouts are sampled."""
        return self.explorer.temperature

    @property
    def max_staleness(self) -> int:
        """Largest lag of a group that is trained on, in optimizer steps."""
        return self.sync.max_staleness

    @property
    def synchronous(self) -> bool:
        """Whether everything trained was sampled by the weights that train on it."""
        return self.sync.synchronous

    @property
    def publish_every(self) -> int:
        """Optimizer steps between weight publications."""
        return self.sync.every

    @property
    def judged_one_by_one(self) -> str:
        """What keeps operators from seeing a training batch; empty if they see it."""
        return f"'sync.max_staleness' {self.max_staleness}" if self.max_staleness else ""

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
    """Play and store groups with a fixed policy; no trainer is started."""
    groups: int = Field(ge=1)
    """How many groups to play."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Groups between two records of the selector's state."""

    @property
    def judged_one_by_one(self) -> str:
        """Nothing is trained: there is no training batch."""
        return "mode 'explore'"


class TrainRecipe(RunRecipe):
    """Train on the groups that another run explored and stored in the same buffer."""

    mode: Literal["train"]
    """Train on groups that a run of mode `explore` stored earlier."""
    model: Model
    """The policy to train; the importance ratios are right if it is the one that explored."""
    explored_by: str
    """Name of the run that explored; its groups, leases and versions are continued."""
    group_size: int = Field(ge=1)
    """Rollouts per group in the run that explored."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature that those rollouts were sampled at."""
    experience_ops: Operators
    """The same list as in the run that explored; only what this list judged is trained on."""
    sampler: Component = Component(use="fifo")
    """Which stored groups train next; see docs/sampler.md."""
    monitor: Monitor = Field(default_factory=Monitor)
    """Trackers and the Prometheus endpoint; the default writes TensorBoard files."""
    stages: list[RlStage] = Field(min_length=1, max_length=1)
    """Exactly one stage, a policy-gradient one."""

    several_processes: ClassVar[bool] = True
    rewards: ClassVar[None] = None
    """Nobody explores: the rewards are stored."""
    feedback_join: ClassVar[None] = None
    greedy_member: ClassVar[None] = None
    """Whether the exploring run decoded one is not known here."""
    offline_stages: ClassVar[tuple[()]] = ()
    has_experts: ClassVar[bool] = True
    """Whether the exploring run had experts is seen in the buffer."""

    @property
    def run_id(self) -> str:
        """The exploring run's."""
        return self.explored_by

    @property
    def leases_by(self) -> Component:
        """As the recipe says."""
        return self.sampler

    @property
    def rl(self) -> RlStage:
        """The stage that trains by reinforcement."""
        return self.stages[0]

    @property
    def least_members(self) -> int:
        """Fewest rollouts of a group that count as one: stored groups are whole."""
        return self.group_size

    @property
    def max_staleness(self) -> None:
        """Stored groups have no bound of staleness."""
        return None

    @property
    def synchronous(self) -> bool:
        """The groups were sampled before the run, so never."""
        return False

    @property
    def publish_every(self) -> int:
        """Nobody explores: weights are published with the checkpoints."""
        return self.rl.checkpoint_every

    @property
    def judged_one_by_one(self) -> str:
        """Operators see a training batch."""
        return ""

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
    """Offline stages only, on rows and pairs that the buffer holds."""
    model: Model
    """The policy that the first stage starts from."""
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
    """Measure models on held-out tasks; nothing is trained."""
    models: list[str] = Field(min_length=1)
    """Hugging Face folders, or patterns of such (`runs/x/checkpoints/checkpoint-*`)."""
    explorer: ExplorerSection
    """Engine, sampling and reward; how often a task is asked is `evaluation.samples`, not `group_size`."""
    evaluation: Evaluation
    """How many held-out tasks are played, and how often each."""

    @model_validator(mode="after")
    def _rewards(self) -> EvalRecipe:
        unique_rewards(self.explorer.reward)
        return self


class DataRecipe(TasksRecipe):
    """Load, clean and score data; no model."""

    mode: Literal["data"]
    """Clean tasks and score stored rollouts (`rft data run`); no model is loaded."""
    rollouts: list[Rollouts] = Field(default_factory=list)
    """Files of completions to score and store as experiences; none by default."""
    reward: list[RewardComponent] = Field(default_factory=list)
    """Components of the reward that scores them; their weighted sum is stored. Needed with `rollouts`."""

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

TrainingRecipe = OnlineRecipe | TrainRecipe
"""A run with a stage that trains by reinforcement."""
OperatorRecipe = OnlineRecipe | ExploreRecipe | TrainRecipe
"""A run with `experience_ops`."""
ExplorerRecipe = PlayingRecipe | EvalRecipe
"""A run with explorers."""
