"""An environment whose observations and actions are texts: what the environment loop plays."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task

WHOLE = r"(?s)\A\s*(.*?)\s*\Z"
"""Pattern of a whole reply."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The observation, reward and end after a reset or a step."""

    text: str
    state: str
    """Key of the state: equal for equal observations."""
    reward: float | None = 0.0
    """None: the environment gave none."""
    done: bool = False


class TextEnvironment(Protocol):
    """One environment, for one rollout at a time."""

    @property
    def wanted(self) -> str:
        """Form of a reply, in words for the model."""
        ...

    def reset(self, task: Task) -> Shown:
        """Begin anew for a task."""
        ...

    def action(self, reply: str) -> object:
        """The action that a reply means; None when it means none that the environment takes."""
        ...

    def step(self, action: object) -> Shown:
        """Take a step."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


def task_seed(task: Task) -> int:
    """`metadata["seed"]`, else one made from the task's id: a group begins in one state."""
    given: int = task.metadata.get("seed", int(task.task_id[:8], 16))
    return given


def last_match(pattern: re.Pattern[str], reply: str) -> str | None:
    """The last match in a reply (its first group, where the pattern has one); None without a match."""
    found = None
    for found in pattern.finditer(reply):  # noqa: B007 - only the last one counts
        pass
    if found is None:
        return None
    text: str | None = found[1] if pattern.groups else found[0]
    return text or ""


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of a recipe, whatever the case. Raises: RecipeError when it is none."""
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as err:
        raise RecipeError(f"the pattern {pattern!r} of an environment's actions is wrong: {err}.") from err


def words_pattern(words: Iterable[str]) -> str:
    """The pattern of one of the words, standing alone."""
    listed = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return rf"(?<!\w)(?:{listed})(?!\w)"
