"""Whole recipes: what every one has, and what each mode adds. Rules across sections live here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from rft_data.recipe.sections import (
    BufferSection,
    Evaluation,
    Experts,
    ExplorerSection,
    Model,
    Operators,
    RewardComponent,
    Rollouts,
    Section,
    SelectorSection,
    Stage,
    Sync,
    Taskset,
)


class Recipe(Section):
    """What every recipe has; `mode` says which of the two below it is."""

    recipe: Literal[1]
    """Format version."""
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Also the run id and the default run folder."""
    seed: int = 0
    buffer: BufferSection
    tasks: list[Taskset] = Field(min_length=1)
    task_ops: Operators = Field(default_factory=list)
    allow_unsafe_ops: bool = False
    """Let in Data-Juicer operators outside the shipped allow-list; some run their arguments as code."""
    _references: dict[tuple[Any, ...], str] = PrivateAttr(default_factory=dict)

    def keep_references(self, found: Mapping[tuple[Any, ...], str]) -> None:
        """Remember which values came from the environment, and from which reference."""
        self._references.update(found)

    def saved(self) -> dict[str, Any]:
        """The resolved recipe as JSON values, with environment references put back (they may be secrets)."""
        tree: dict[str, Any] = self.model_dump(mode="json")
        for loc, reference in self._references.items():
            node: Any = tree
            for part in loc[:-1]:
                node = node[part]
            node[loc[-1]] = reference
        return tree


class OnlineRecipe(Recipe):
    """Explore and train."""

    mode: Literal["online"]
    run_dir: str
    model: Model
    experts: list[Experts] = Field(default_factory=list)
    selector: SelectorSection
    explorer: ExplorerSection
    experience_ops: Operators
    sync: Sync = Field(default_factory=Sync)
    stages: list[Stage] = Field(min_length=1)
    """Offline stages first, then one online stage."""
    evaluation: Evaluation

    @model_validator(mode="after")
    def _coherent(self) -> OnlineRecipe:
        kinds = [stage.algorithm for stage in self.stages]
        if kinds[-1] != "grpo" or "grpo" in kinds[:-1]:
            raise ValueError(f"'stages' must be sft stages and then one grpo stage, found {kinds}")
        if "sft" in kinds and not self.experts:
            raise ValueError("an 'sft' stage needs 'experts' to make the solutions it trains on")
        unique_rewards(self.explorer.reward)
        named = {taskset.name for taskset in self.tasks}
        unknown = {name for section in self.experts for name in section.tasksets} - named
        if unknown:
            raise ValueError(f"'experts' names tasksets {sorted(unknown)}; there are {sorted(named)}")
        if self.explorer.group_size < 2:
            raise ValueError(
                "'explorer.group_size' is 1; grpo compares rollouts of one task: give at least 2"
            )
        if "temperature" in self.stages[-1].trl:
            raise ValueError("the trainer's temperature is 'explorer.temperature'; remove it from 'trl'")
        return self


class DataRecipe(Recipe):
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


MODES: dict[str, type[OnlineRecipe] | type[DataRecipe]] = {"online": OnlineRecipe, "data": DataRecipe}
