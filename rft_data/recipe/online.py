"""The recipe of an online run: explore and train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from rft_data.recipe.ab import AbTest, check_ab
from rft_data.recipe.algorithms import NOT_IMPORTED, find_algorithm
from rft_data.recipe.monitor import Monitor
from rft_data.recipe.offline import AnyOfflineStage, SftStage
from rft_data.recipe.presets import sets_advantage, with_preset
from rft_data.recipe.recipe import PlayingRecipe, check_replay, fits_algorithm
from rft_data.recipe.running import (
    Component,
    LateRewards,
    Sync,
)
from rft_data.recipe.section import check_only
from rft_data.recipe.sections import (
    OnlineEvaluation,
    Sampler,
    TaskUpkeep,
)
from rft_data.recipe.stages import RlStage, Stage
from rft_data.recipe.tasksets import AnyExperts


class OnlineRecipe(PlayingRecipe):
    """Explore and train."""

    several_processes: ClassVar[bool] = True

    mode: Literal["online"]
    """Explore and train in one loop (`rft run`)."""
    experts: list[AnyExperts] = Field(default_factory=list)
    """Worked solutions to store before the first stage, for imitation; none by default."""
    sync: Sync = Field(default_factory=Sync)
    """How often weights are published and how stale a rollout may be; the default is synchronous on-policy.
"""
    sampler: Sampler = Component(use="fifo")
    """The choice of the groups that train next; see docs/sampler.md."""
    rewards: LateRewards | None = None
    """Wait for rewards that come as feedback; left out: a group is judged when its rollouts are stored."""
    monitor: Monitor = Field(default_factory=Monitor)
    """Trackers and the Prometheus endpoint; the default writes TensorBoard files."""
    stages: list[Stage] = Field(min_length=1)
    """Offline stages first, then one online stage."""
    task_upkeep: TaskUpkeep | None = None
    """Retire and synthesise tasks while the run goes on; left out: the task table stays as it is."""
    evaluation: OnlineEvaluation | None = Field(default=None, exclude_if=lambda given: given is None)
    """How models are measured on held-out tasks; left out: they are not measured."""
    ab: AbTest | None = Field(default=None, exclude_if=lambda given: given is None)
    """A share of the users of a served run that older weights serve, for comparison; left out: none."""

    @model_validator(mode="after")
    def _one_hub(self) -> OnlineRecipe:
        if self.rewards is not None and self.rewards.port and self.buffer.is_hub:
            raise ValueError(
                "'rewards.port' is of a hub of the run's own, and 'buffer.uri' is one already, which takes "
                "the feedback; remove the port"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: object, info: ValidationInfo) -> object:
        return with_preset(tree, explores=True, check_only=check_only(info))

    @property
    def feedback_port(self) -> int | None:
        """Port at which the run's hub receives delayed rewards; None: it receives none."""
        return None if self.rewards is None else self.rewards.port

    @property
    def leases_by(self) -> Component:
        """The sampler that leases the run's groups."""
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
        """Whether experts make solutions."""
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
        """The reason that operators do not see a training batch; empty if they see it."""
        return f"'sync.max_staleness' {self.max_staleness}" if self.max_staleness else ""

    @property
    def feedback_join(self) -> Mapping[str, object] | None:
        """The arguments of the operator that fills rewards from feedback; None without one."""
        found = [
            args or {} for op in self.experience_ops for name, args in op.items() if name == "feedback_mapper"
        ]
        return next((args for args in found if args.get("into", "reward") == "reward"), None)

    @model_validator(mode="after")
    def _can_be_trained(self) -> OnlineRecipe:
        if self.explorer.base_url is not None:
            raise ValueError(
                "the engine 'openai' samples a model whose weights this run does not have, and gives no "
                "token ids and no logprobs, which reinforcement needs; collect its answers with mode "
                "'explore' and train on them with mode 'offline' (sft, dpo), or take an engine with weights"
            )
        return self

    @model_validator(mode="after")
    def _rewards_can_come_later(self) -> OnlineRecipe:
        if self.rewards is None:
            return self
        if self.feedback_join is None:
            raise ValueError(
                "'rewards' waits for feedback, and no operator of 'experience_ops' reads it; put "
                "'feedback_mapper: {}' first in 'experience_ops'"
            )
        if self.sync.max_staleness < 1:
            raise ValueError(
                "'rewards' needs 'sync.max_staleness' of at least 1: a synchronous run that is interrupted "
                "explores its step again, and feedback on the first rollouts would be lost"
            )
        return self

    @model_validator(mode="after")
    def _pinned(self) -> OnlineRecipe:
        if self.ab is not None:
            check_ab(self.ab, self.tasks, self.explorer, self.placement, self.sync, self.evaluation)
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
    def _measured_when_published(self) -> OnlineRecipe:
        every = None if self.evaluation is None else self.evaluation.every
        if every is not None and every % self.sync.every:
            raise ValueError(
                f"'evaluation.every' is {every}, and weights are published every {self.sync.every} steps "
                "('sync.every'); give a multiple of that"
            )
        return self

    @model_validator(mode="after")
    def _coherent(self, info: ValidationInfo) -> OnlineRecipe:
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
        preset = find_algorithm(last.algorithm, check_only=check_only(info))
        fits_algorithm(last, preset, self.explorer.group_size)
        check_replay(self.sampler.use, last, preset)
        if "experts" in preset.needs and not self.experts:
            raise ValueError(f"'{last.algorithm}' imitates experts beside its own rollouts; give 'experts'")
        if preset is not NOT_IMPORTED and not any(map(sets_advantage, self.experience_ops)):
            raise ValueError("'experience_ops' has no advantage operator; end it with one")
        return self
