"""The limits of an explorer: for every wait, every retry and the processes of rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one explorer.

    Raises: RecipeError for a value out of its range.
    """

    rollout_deadline_s: float = 600.0
    """For one rollout, with its wait for the engine, its rewards and its retries. After it the rollout has
    failed."""
    retries: int = 1
    """How often a rollout is retried after its workflow raised ConnectionError or TimeoutError, and a reward
    after a failure outside of the model (WORLD_FAILURES)."""
    extra: int = 0
    """Rollouts started per group beyond its size; the first that arrive are kept, the others cancelled."""
    min_members: int | None = None
    """Good rollouts with which a group is accepted although others failed; None: all must be good."""
    reward_deadline_s: float = 10.0
    """For one call of a reward in a child process. After it the child is killed, the rollout unscored."""
    reward_processes: int = 2
    """Child processes for rewards, per explorer; none are started if every reward is trusted."""
    reward_memory_mb: int = 2048
    """Memory (MiB of address space) that a child may use beyond what it uses once its rewards are built."""

    def __post_init__(self) -> None:
        least = {"retries": 0, "extra": 0, "min_members": 1, "reward_processes": 1, "reward_memory_mb": 1}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "min_members":
                continue
            whole, low = field.name in least, least.get(field.name, 0)
            kinds = int if whole else (int, float)
            right = isinstance(value, kinds) and not isinstance(value, bool)
            if not right or not (value >= low if whole else value > low):
                wanted = f"a whole number, {low} or more" if whole else "a number of seconds above 0"
                raise RecipeError(f"explorer.limits.{field.name} is {value!r}; wanted {wanted}.")


def recipe_limits(settings: Mapping[str, Any], group_size: int) -> Limits:
    """The limits of a recipe; those that it leaves out have their defaults.

    Raises: RecipeError for an unknown name, or a value out of its range.
    """
    known = [field.name for field in fields(Limits)]
    for name in settings:
        if name not in known:
            raise RecipeError(
                f"explorer.limits.{name} is not a limit;{suggest(name, known)} Known: {', '.join(known)}."
            )
    limits = Limits(**settings)
    if limits.min_members is not None and limits.min_members > group_size:
        raise RecipeError(
            f"explorer.limits.min_members is {limits.min_members}; wanted at most explorer.group_size, "
            f"which is {group_size}."
        )
    return limits
