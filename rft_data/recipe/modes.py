"""Whole recipes by mode; the online one is in `online.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from rft_data.core.words import Mode
from rft_data.recipe.algorithms import find_algorithm
from rft_data.recipe.monitor import UNWATCHED, Monitor
from rft_data.recipe.offline import HeldoutPairs, OfflineStage, SftStage
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.presets import with_preset
from rft_data.recipe.recipe import (
    PlayingRecipe,
    Recipe,
    RunRecipe,
    TasksRecipe,
    check_replay,
    fits_algorithm,
)
from rft_data.recipe.rewards import RewardComponent, check_rewards
from rft_data.recipe.running import (
    Component,
    DataPlace,
    Serve,
)
from rft_data.recipe.section import check_only
from rft_data.recipe.sections import (
    Evaluation,
    ExplorerSection,
    Model,
    Operators,
    Sampler,
)
from rft_data.recipe.stages import RlStage
from rft_data.recipe.tasksets import Rollouts
from rft_data.recipe.transports import check_transport, with_usual_way


class ExploreRecipe(PlayingRecipe):
    """Explore with a fixed policy, for a training at another time or elsewhere."""

    mode: Literal["explore"]
    """Play and store groups with a fixed policy; no trainer is started."""
    groups: int = Field(ge=1)
    """How many groups to play."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Groups between two records of the selector's state."""
    monitor: Monitor = Field(default=UNWATCHED, exclude_if=lambda given: given == UNWATCHED)
    """Trackers and the Prometheus endpoint, which get numbers at each checkpoint; none by default."""
    serve: Serve | None = None
    """Let runs of mode `train` elsewhere train meanwhile; left out: the buffer is this run's alone."""

    trains: ClassVar[bool] = False

    @property
    def judged_one_by_one(self) -> str:
        """Nothing is trained: there is no training batch."""
        return "mode 'explore'"

    @model_validator(mode="after")
    def _one_hub(self) -> ExploreRecipe:
        if self.serve is not None and self.buffer.is_hub:
            raise ValueError(
                "'serve' offers a hub of the run's own, and 'buffer.uri' is one already, at which runs of "
                "mode 'train' find the groups; remove 'serve'"
            )
        return self

    @model_validator(mode="after")
    def _served(self) -> ExploreRecipe:
        if self.explorer.base_url is not None and self.model.path is None:
            raise ValueError(
                "'model.build' makes weights, and the engine 'openai' serves none; give 'model.path', the "
                "name of a model at the endpoint"
            )
        return self


class TrainRecipe(RunRecipe):
    """Train on the groups that another run explored and stored in the same buffer."""

    mode: Literal["train"]
    """Train on groups that a run of mode `explore` stored, or stores meanwhile behind a hub."""
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
    sampler: Sampler = Component(use="fifo")
    """The choice of the stored groups that train next; see docs/sampler.md."""
    monitor: Monitor = Field(default_factory=Monitor)
    """Trackers and the Prometheus endpoint; the default writes TensorBoard files."""
    stages: list[RlStage] = Field(min_length=1, max_length=1)
    """Exactly one stage, a policy-gradient one."""

    several_processes: ClassVar[bool] = True
    explorer: ClassVar[None] = None
    """Nothing is explored."""
    rewards: ClassVar[None] = None
    """Nothing is explored: the rewards are stored."""
    feedback_join: ClassVar[None] = None
    greedy_member: ClassVar[None] = None
    """None: whether the exploring run decoded one greedily is not known here."""
    has_experts: ClassVar[bool] = True
    """The buffer shows whether the exploring run had experts."""

    @property
    def run_id(self) -> str:
        """The run id of the run that explored."""
        return self.explored_by

    @property
    def leases_by(self) -> Component:
        """The sampler that leases the run's groups."""
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
        """False: the groups were sampled before the run."""
        return False

    @property
    def publish_every(self) -> int:
        """Nothing is explored: weights are published with the checkpoints."""
        return self.rl.checkpoint_every

    @property
    def judged_one_by_one(self) -> str:
        """Operators see a training batch."""
        return ""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: object, info: ValidationInfo) -> object:
        return with_preset(tree, explores=False, check_only=check_only(info))

    @model_validator(mode="after")
    def _coherent(self, info: ValidationInfo) -> TrainRecipe:
        preset = find_algorithm(self.stages[0].algorithm, check_only=check_only(info))
        fits_algorithm(self.stages[0], preset, self.group_size)
        check_replay(self.sampler.use, self.stages[0], preset)
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
    monitor: Monitor = Field(default_factory=Monitor, exclude_if=lambda given: given == Monitor())
    """Trackers, which are shown the numbers of a stage while it trains."""

    @property
    def offline_stages(self) -> list[OfflineStage]:
        """All of them."""
        return self.stages

    @model_validator(mode="after")
    def _unserved(self) -> OfflineRecipe:
        self.monitor.check_unserved(self.mode)
        return self

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
    """Hugging Face folders, or patterns of such (`runs/x/checkpoints/checkpoint-*`); with the engine `openai`
    names of models at the endpoint."""
    explorer: ExplorerSection
    """Engine, sampling and reward; how often a task is asked is `evaluation.samples`, not `group_size`."""
    evaluation: Evaluation
    """How many held-out tasks are played, and how often each."""
    experience_ops: Operators = Field(default_factory=list, exclude_if=lambda given: not given)
    """Operators of which those that may shape a reward do, as in the run that trained; none by default."""
    monitor: Monitor = Field(default=UNWATCHED, exclude_if=lambda given: given == UNWATCHED)
    """Trackers, which are shown the figures of each model when it is measured; none by default."""

    several_models: ClassVar[bool] = True

    @property
    def played(self) -> Model:
        """The first of the models."""
        return Model(path=self.models[0])

    trains: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _ungrouped(cls, tree: object) -> object:
        """Nothing is compared within a group: its size need not be given."""
        if isinstance(tree, dict) and isinstance(tree.get("explorer"), dict):
            return with_usual_way({**tree, "explorer": {"group_size": 1, **tree["explorer"]}})
        return tree

    @model_validator(mode="after")
    def _rewards(self) -> EvalRecipe:
        check_rewards(self.explorer.reward, [one.name for one in self.tasks], groups=True)
        return self

    @model_validator(mode="after")
    def _reachable(self) -> EvalRecipe:
        self.monitor.check_unserved(self.mode)
        check_transport(self.explorer.engine, self.placement)
        return self


class DataRecipe(TasksRecipe):
    """Load, clean and score data; no model."""

    mode: Literal["data"]
    """Clean tasks and score stored rollouts (`rft data run`); no model is loaded."""
    rollouts: list[Rollouts] = Field(default_factory=list)
    """Files of completions to score and store as experiences; none by default."""
    reward: list[RewardComponent] = Field(default_factory=list)
    """Components of the reward that scores them; their weighted sum is stored. Needed with `rollouts`."""
    placement: DataPlace = Field(default_factory=DataPlace, exclude_if=lambda given: given == DataPlace())
    """The place of `task_ops`; the default is this process."""

    @model_validator(mode="after")
    def _own_buffer(self) -> DataRecipe:
        if self.buffer.is_hub:
            raise ValueError(
                "'buffer.uri' is a hub's address, and mode 'data' writes its buffer itself; give the folder, "
                "before `rft hub` serves it"
            )
        return self

    @model_validator(mode="after")
    def _coherent(self) -> DataRecipe:
        if self.rollouts and not self.reward:
            raise ValueError("'rollouts' are to be scored: give at least one 'reward'")
        check_rewards(self.reward, [one.name for one in self.tasks], groups=False)
        unknown = {rollouts.taskset for rollouts in self.rollouts} - {taskset.name for taskset in self.tasks}
        if unknown:
            raise ValueError(f"'rollouts' names tasksets {sorted(unknown)} that 'tasks' does not have")
        return self


MODES: Mapping[str, type[Recipe]] = {
    Mode.ONLINE: OnlineRecipe,
    Mode.EXPLORE: ExploreRecipe,
    Mode.TRAIN: TrainRecipe,
    Mode.OFFLINE: OfflineRecipe,
    Mode.EVAL: EvalRecipe,
    Mode.DATA: DataRecipe,
}

TrainingRecipe = OnlineRecipe | TrainRecipe
"""A run with a stage that trains by reinforcement."""
OperatorRecipe = OnlineRecipe | ExploreRecipe | TrainRecipe
"""A run with `experience_ops`."""
ShapingRecipe = OperatorRecipe | EvalRecipe
"""A run whose evaluations operators may shape."""
StagedRecipe = OnlineRecipe | OfflineRecipe
"""A run that may have stages that train on stored rows."""
ExplorerRecipe = PlayingRecipe | EvalRecipe
"""A run with explorers."""
