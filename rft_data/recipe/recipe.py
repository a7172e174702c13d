"""Sections that recipes of several modes have in common, and the rules across them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from rft_data.core.scratch import on_store, working_folder
from rft_data.recipe.algorithms import Algorithm
from rft_data.recipe.imports import Import
from rft_data.recipe.names import is_safe
from rft_data.recipe.offline import AnyOfflineStage
from rft_data.recipe.presets import NO_RATIO
from rft_data.recipe.rewards import check_rewards
from rft_data.recipe.running import (
    Component,
    Deadlines,
    OperatorLimits,
    PlacementSection,
)
from rft_data.recipe.section import Loc, Section
from rft_data.recipe.sections import (
    BufferSection,
    ExplorerSection,
    Model,
    Operators,
    SelectorSection,
)
from rft_data.recipe.stages import RlStage
from rft_data.recipe.task_sources import ReasoningGym
from rft_data.recipe.tasksets import Taskset
from rft_data.recipe.transports import check_transport, with_usual_way


class Recipe(Section):
    """A recipe that was read and checked; its `mode` decides which subclass it is."""

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
    """Let in Data-Juicer's operators outside the allow-list, some of which run code in their arguments."""
    op_limits: dict[str, OperatorLimits] = Field(default_factory=dict)
    """How single operators of `task_ops` and `experience_ops` run, by name; see docs/operators.md."""
    _references: dict[Loc, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _limited(self) -> Self:
        upkeep = getattr(self, "task_upkeep", None)
        lists = [getattr(self, key, []) for key in ("task_ops", "experience_ops")]
        lists.append(upkeep.ops if upkeep else [])
        known = {name for operators in lists for operator in operators for name in operator}
        if unknown := sorted(self.op_limits.keys() - known):
            raise ValueError(f"'op_limits' names operators {unknown}; the lists have {sorted(known)}")
        unsafe = sorted(name for name in known if not is_safe(name))
        if unsafe and not self.allow_unsafe_ops:
            raise ValueError(
                f"operators {unsafe}: each is not on the list of safe operators, which do not execute their "
                "arguments and use no files and no network; set allow_unsafe_ops: true if you trust this "
                "recipe and the operators"
            )
        return self

    def keep_references(self, found: Mapping[Loc, str]) -> None:
        """Remember which values came from the environment, and from which reference."""
        self._references.update(found)

    @property
    def references(self) -> Mapping[Loc, str]:
        """The references to the environment, by the place of the value that came from each."""
        return self._references

    def saved(self) -> dict[str, object]:
        """The resolved recipe as JSON values, with environment references put back (they may be secrets)."""
        tree: dict[str, object] = self.model_dump(mode="json")
        for loc, reference in self._references.items():
            node: Any = tree
            for part in loc[:-1]:
                node = node[part]
            node[loc[-1]] = reference
        return tree


class TasksRecipe(Recipe):
    """The sections of every recipe with tasks."""

    tasks: list[Taskset] = Field(min_length=1)
    """The tasksets, read in this order and stored in the buffer."""
    task_ops: Operators = Field(default_factory=list)
    """Data-Juicer operators that clean the tasks before anything is played; see docs/tasks.md."""


class RunRecipe(Recipe):
    """The sections of every run on a model."""

    run_dir: str
    """Folder for checkpoints, weights, log and summary, relative to the working directory; or, where the
    buffer is on an object store too, `s3://bucket/prefix`: docs/storage.md."""
    imports: list[Import] = Field(default_factory=list, exclude_if=lambda given: not given)
    """Files whose rows are stored in the buffer before the run begins: answers, pairs, tasks to train on."""
    placement: PlacementSection = Field(default_factory=PlacementSection)
    """The place of explorers and trainer; the default is this process, one after the other."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """Longest waits for each part of the run, in seconds, before it counts as stalled."""

    trains: ClassVar[bool] = True
    """Whether weights are changed."""
    several_processes: ClassVar[bool] = False
    """Whether torchrun may start the trainer as several processes."""

    @model_validator(mode="after")
    def _processes_train(self) -> Self:
        processes = self.placement.trainer.processes
        if processes > 1 and not self.several_processes:
            raise ValueError(
                f"'placement.trainer.processes' is {processes}; only the last stage of the modes online and "
                f"train has several, and in mode {self.mode} one process trains: remove it"
            )
        return self

    @model_validator(mode="after")
    def _imports_into_its_own(self) -> Self:
        if self.imports and self.buffer.is_hub:
            raise ValueError(
                "'imports' need a buffer of the run's own, and 'buffer.uri' is a hub; remove them"
            )
        return self

    @model_validator(mode="after")
    def _stored_together(self) -> Self:
        if on_store(self.run_dir) and "://" not in self.buffer.uri:
            raise ValueError(
                f"'run_dir' is {self.run_dir}, and 'buffer.uri' is the folder '{self.buffer.uri}' of one "
                f"machine: another one could not continue the run; give buffer.uri: "
                f"{self.run_dir.rstrip('/')}/buffer"
            )
        return self

    @property
    def folder(self) -> Path:
        """The run's folder on this machine; for one on an object store, where it works before it stores."""
        return working_folder(self.run_dir)

    @property
    def run_id(self) -> str:
        """The run id under which groups, leases and versions are written."""
        return self.name

    @property
    def feedback_port(self) -> int | None:
        """Port at which the run's hub receives delayed rewards; None: it receives none."""
        return None

    @property
    def starts_from(self) -> Model | None:
        """The policy before any training; None where a run measures several models."""
        model = getattr(self, "model", None)
        return model if isinstance(model, Model) else None

    @property
    def offline_stages(self) -> Sequence[AnyOfflineStage]:
        """The stages that train on stored rows."""
        return ()

    @property
    def leases_by(self) -> Component:
        """The sampler that leases the run's groups; nothing is leased where a mode has none."""
        return Component(use="fifo")


class PlayingRecipe(RunRecipe, TasksRecipe):
    """The sections of every run with explorers."""

    model: Model
    """The policy that plays, before any training."""
    selector: SelectorSection
    """The choice of the next tasks, by name and arguments; see docs/selectors.md."""
    explorer: ExplorerSection
    """Engine, group size, sampling and reward: how each task is played."""
    experience_ops: Operators
    """Operators that filter rollouts, shape rewards and set advantages, in order; see docs/operators.md."""

    several_models: ClassVar[bool] = False
    """Whether the path of `played` may be a pattern of folders."""

    @property
    def played(self) -> Model:
        return self.model

    @model_validator(mode="before")
    @classmethod
    def _sent_usually(cls, tree: object) -> object:
        return with_usual_way(tree)

    @model_validator(mode="after")
    def _rewards(self) -> Self:
        check_rewards(self.explorer.reward, [one.name for one in self.tasks], groups=True)
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        check_transport(self.explorer.engine, self.placement)
        return self

    @model_validator(mode="after")
    def _served(self) -> Self:
        for taskset in self.tasks:
            is_served, played_by = (
                taskset.source.use == "served",
                taskset.workflow or self.explorer.workflow.use,
            )
            if taskset.workflow in self.explorer.workflows:
                played_by = self.explorer.workflows[taskset.workflow].use
            if is_served and played_by != "served":
                raise ValueError(
                    f"taskset '{taskset.name}' is what clients of the run ask, and workflow '{played_by}' "
                    "plays it; give explorer: {workflow: {use: served, ...}}"
                )
        return self

    @model_validator(mode="after")
    def _selectable(self) -> Self:
        from rft_data.tasks.selectors import needed_metadata  # loads NumPy, which not every command needs

        needed = needed_metadata(self.selector.use, self.selector.args)
        for taskset in self.tasks:
            if taskset.metadata is None and not isinstance(taskset.source, ReasoningGym):
                continue  # it keeps what it has, which is not looked at here
            if lacking := sorted(needed - set(taskset.metadata or ())):
                raise ValueError(
                    f"selector '{self.selector.use}' reads {', '.join(lacking)} in the tasks' metadata, and "
                    f"taskset '{taskset.name}' does not keep that; name fields of its source in 'metadata'"
                )
        return self


def fits_algorithm(stage: RlStage, preset: Algorithm, group_size: int) -> None:
    """Raises: ValueError when an own preset cannot work on such groups."""
    if ":" in stage.algorithm and group_size < preset.least_group:  # built-in ones: preflight/rules.py
        raise ValueError(
            f"'group_size' is {group_size}; {stage.algorithm} compares rollouts of one task: "
            f"give at least {preset.least_group}"
        )


def check_replay(sampler: str, stage: RlStage, algorithm: Algorithm) -> None:
    """Raises: ValueError where groups are trained again and nothing corrects for older weights."""
    given = stage.off_policy
    if sampler != "replay" or given.importance != "none" or algorithm.off_policy is not None:
        return
    if given.old_logprobs == "recompute":
        why = "'off_policy.old_logprobs: recompute' without weights makes every ratio of a step 1"
    elif stage.loss is not None and stage.loss.use == NO_RATIO:
        why = f"the loss '{NO_RATIO}' of '{stage.algorithm}' has no ratio to the policy that sampled"
    else:
        return
    raise ValueError(
        f"sampler 'replay' trains on groups of older weights, and {why}; leave 'off_policy' out, or set its "
        "'importance', or take an algorithm with clipped ratios"
    )
