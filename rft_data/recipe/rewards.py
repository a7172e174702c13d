"""The section of a recipe about rewards: components, and how they make one number; see docs/rewards.md."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence

from pydantic import Field, field_validator, model_validator

from explorers.rewards.composition import Composition
from explorers.rewards.contract import Subject
from explorers.rewards.registry import REWARDS, built_in_kind
from rft_data.core.errors import RftError
from rft_data.recipe.names import known_name
from rft_data.recipe.section import Section


class OnlyIf(Section):
    """The gate of a component: it counts, and is computed, only where another one gave enough."""

    reward: str
    """Name of a component before it in the list."""
    at_least: float
    """The value that the component must have, before its bounds and weight."""


class RewardComponent(Section):
    """One part of the reward."""

    use: str
    """A built-in reward (docs/rewards.md), or `package.module:Name` of your own."""
    weight: float = 1.0
    """Factor of its score in the sum that is the reward."""
    args: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments the reward is made with."""
    name: str | None = Field(default=None, min_length=1, exclude_if=lambda given: given is None)
    """Its name in `reward_parts`, gates and errors; left out: what `use` says. Two of one kind need names."""
    min: float | None = Field(default=None, exclude_if=lambda given: given is None)
    """A lower value counts as this one; the weight comes after."""
    max: float | None = Field(default=None, exclude_if=lambda given: given is None)
    """A higher value counts as this one; the weight comes after."""
    only_if: OnlyIf | None = Field(default=None, exclude_if=lambda given: given is None)
    """Gate: where it is shut the component adds nothing and is not computed. Left out: it always counts."""
    tasksets: list[str] | None = Field(default=None, min_length=1, exclude_if=lambda given: given is None)
    """Names of entries of `tasks` that it scores; left out: all of them."""

    @field_validator("use")
    @classmethod
    def _known(cls, use: str) -> str:
        return known_name("reward", use, REWARDS)

    @model_validator(mode="after")
    def _takes_its_arguments(self) -> RewardComponent:
        if self.use in REWARDS:
            try:
                inspect.signature(REWARDS[self.use]).bind(**self.args)
            except TypeError as err:
                raise ValueError(f"reward '{self.use}' cannot be made: {err}") from err
        return self

    @property
    def stored_as(self) -> str:
        """Its key in `reward_parts`."""
        return self.name or self.use


def check_rewards(components: Sequence[RewardComponent], tasksets: Collection[str], *, groups: bool) -> None:
    """Check a reward as a whole.

    Args: tasksets: names of the recipe's; groups: whether whole groups are there to be compared.
    Raises: ValueError for components that cannot make one number.
    """
    names = [component.stored_as for component in components]
    if len(names) > len(set(names)):
        raise ValueError(f"'reward' uses one component twice: {names}; give each a 'name' of its own")
    try:
        if components:
            Composition.from_recipe([component.model_dump() for component in components])
    except RftError as err:
        raise ValueError(str(err)) from err
    chosen = {name for component in components for name in component.tasksets or ()}
    if unknown := chosen - set(tasksets):
        raise ValueError(f"'reward' is for tasksets {sorted(unknown)}; there are {sorted(tasksets)}")
    bare = [name for name in tasksets if not _scorers(components, name)]
    if bare and components:
        raise ValueError(f"no component of 'reward' is for the tasksets {bare}; leave 'tasksets' out of one")
    if not groups and (of_groups := [c.use for c in components if _is_of_groups(c)]):
        raise ValueError(f"'reward' has {of_groups}, which compare the rollouts of a group: there are none")


def deciding(components: Sequence[RewardComponent], tasksets: Collection[str]) -> dict[str, str]:
    """By taskset, the component by which a rollout passes: the first that scores it; none without any."""
    found = {name: _scorers(components, name) for name in tasksets}
    return {name: scorers[0].stored_as for name, scorers in found.items() if scorers}


def _scorers(components: Sequence[RewardComponent], taskset: str) -> list[RewardComponent]:
    return [one for one in components if one.tasksets is None or taskset in one.tasksets]


def _is_of_groups(component: RewardComponent) -> bool:
    kind = built_in_kind(component.use)
    return kind is not None and kind.subject is Subject.GROUP
