"""Parameters and results of rewards, told by their signatures.

`(task, completion)`, `(trajectory)` or `(group)`, each with or without `task`, as a function, a coroutine
function or an object that is called like one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from typing import Any, Final, TypeAlias, TypeGuard

from rft_data.core.errors import RecipeError
from rft_data.core.masking import masked
from rft_data.core.rows import Task
from rft_data.core.trajectory import Trajectory
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_SHOWN = 500
"""Characters of a reward's error or value that a reason quotes."""
_NAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_RETURNED, _RAISED = "returned", "raised"
_TOTAL = "reward"
"""The part that is the reward's value where it returns parts."""

Judged: TypeAlias = str | Trajectory | Sequence[Trajectory]
"""Subject of a reward: a completion, a rollout or a group of rollouts."""


class Subject(StrEnum):
    """The input of a reward function."""

    COMPLETION = "completion"
    """The text of one rollout."""
    TRAJECTORY = "trajectory"
    """One rollout with its messages, tokens and tools."""
    GROUP = "group"
    """All rollouts of a task that were sampled together; it returns one value for each."""


TASK: Final = "task"
"""The other word of `RewardKind.takes`."""


@dataclass(frozen=True, slots=True)
class RewardKind:
    """How a reward is called."""

    subject: Subject
    takes: tuple[str, ...]
    """Its required parameters in order, as TASK and the words of `Subject`."""
    asynchronous: bool = False
    """Whether it is a coroutine function: many of its calls run at once in one process."""
    deadline_s: float | None = None
    """Seconds for one call, where an asynchronous reward has an attribute of this name."""


@dataclass(frozen=True, slots=True)
class Score:
    """The value of a reward for one rollout, and the parts it reported."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


Outcome: TypeAlias = Score | Unscored


def reward_kind(reward: object, name: str) -> RewardKind:
    """How to call a reward.

    Raises: RecipeError when its parameters are none of those that a reward may have.
    """
    if not callable(reward):
        raise RecipeError(f"reward '{name}' is a {type(reward).__name__}, which cannot be called; {_WANTED}.")
    parameters = inspect.signature(reward).parameters.values()
    needed = [one for one in parameters if one.default is one.empty and one.kind in _NAMED]
    if "completions" in {one.name for one in parameters}:
        raise RecipeError(
            f"reward '{name}' takes {_shown(needed)}, as TRL calls one for a batch; {_AS_HERE}."
        )
    any_number = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    takes = _TASK_FIRST if any_number and not needed else _takes(needed)
    if takes is None:
        raise RecipeError(f"reward '{name}' takes {_shown(needed)}; {_WANTED}.")
    subject = subject_of(takes)
    asynchronous = any(map(inspect.iscoroutinefunction, (reward, type(reward).__call__)))
    deadline_s = getattr(reward, "deadline_s", None)
    return RewardKind(subject, takes, asynchronous, None if deadline_s is None else float(deadline_s))


def subject_of(takes: Sequence[str]) -> Subject:
    """Subject of a reward with these parameters."""
    return next(Subject(word) for word in takes if word != TASK)


_TASK_FIRST = (TASK, Subject.COMPLETION)
_COMPLETION_FIRST = (Subject.COMPLETION, TASK)
_WANTED = (
    "wanted (task, completion), (trajectory) or (group), the last two also after task; name or annotate "
    "them so (rft_data.Trajectory, list[rft_data.Trajectory])"
)
_AS_HERE = (
    "here it is called for one completion: write `def reward(task, completion)` and return one number; the "
    "answer is task.answer, a row's other columns are in task.metadata"
)


def _shown(parameters: Sequence[inspect.Parameter]) -> str:
    return f"({', '.join(one.name for one in parameters)})"


def _takes(parameters: Sequence[inspect.Parameter]) -> tuple[str, ...] | None:
    """Meaning of the parameters; None when that is not to be told."""
    if any(one.kind is one.KEYWORD_ONLY for one in parameters):
        return None
    words = tuple(map(_word, parameters))
    if len(words) == 1:
        return words if words[0] in set(Subject) else None
    if len(words) != 2:
        return None
    if set(words) & {Subject.TRAJECTORY, Subject.GROUP}:
        return words if words.count(TASK) == 1 else None
    return words if words == _COMPLETION_FIRST else _TASK_FIRST


def _word(parameter: inspect.Parameter) -> str:
    """TASK or a word of `Subject`, by annotation, else by name."""
    given = parameter.annotation
    annotation = given if isinstance(given, str) else inspect.formatannotation(given)
    if "Trajectory" in annotation:
        return Subject.GROUP if "[" in annotation else Subject.TRAJECTORY
    return parameter.name


def outcomes(value: Any, members: int | None) -> tuple[Outcome, ...]:
    """The checked result of a reward: one outcome, or one for each of `members` rollouts of a group."""
    if members is None:
        return (outcome(value),)
    if isinstance(value, Unscored):
        return (outcome(value),) * members
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__") or len(value) != members:
        found = masked(repr(value))[:_SHOWN]
        return (
            Unscored(f"{_RETURNED} {found}; wanted one value for each of the {members} rollouts"),
        ) * members
    return tuple(map(outcome, value))


def outcome(value: object) -> Outcome:
    """The result of a reward for one rollout; anything but a value, parts or Unscored has a reason."""
    if isinstance(value, Unscored):
        known = value.cause in set(UnscoredCause)
        cause = UnscoredCause(value.cause) if known else UnscoredCause.REWARD
        return Unscored(masked(str(value.reason))[:_SHOWN], cause)
    if is_finite(value):
        return Score(float(value))
    if isinstance(value, Mapping) and value and all(map(is_finite, value.values())):
        parts = {str(name): float(part) for name, part in value.items()}
        total = parts.pop(_TOTAL, None)
        return Score(sum(parts.values()) if total is None else total, parts)
    found = masked(repr(value))[:_SHOWN]
    return Unscored(f"{_RETURNED} {found}; wanted a finite number or Unscored(reason)")


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a value is a number that a row can hold; an integer may be too large for that."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def raised(error: BaseException) -> Unscored:
    """Meaning of an error in a reward's code."""
    return Unscored(f"{_RAISED} {type(error).__name__}: {masked(str(error))[:_SHOWN]}", error_cause(error))


def broke_contract(found: Outcome) -> bool:
    """Whether a reward's own code returned what none may return, or raised."""
    return (
        isinstance(found, Unscored)
        and found.cause == UnscoredCause.REWARD
        and found.reason.startswith((f"{_RETURNED} ", f"{_RAISED} "))
    )


def error_cause(error: BaseException) -> UnscoredCause:
    """The cause that the type of an error shows."""
    if isinstance(error, TimeoutError):
        return UnscoredCause.TIMEOUT
    return UnscoredCause.INFRASTRUCTURE if isinstance(error, ConnectionError) else UnscoredCause.REWARD


def arguments(kind: RewardKind, task: Task, judged: Judged) -> list[object]:
    """The arguments of a call, in order."""
    if isinstance(judged, Trajectory) and kind.subject is Subject.COMPLETION:
        judged = judged.completion
    return [task if word == TASK else judged for word in kind.takes]


def judge(reward: Callable[..., object], kind: RewardKind, task: Task, judged: Judged) -> tuple[Outcome, ...]:
    """Results of a reward, one outcome for each rollout. An exception becomes Unscored with a reason.

    Raises: MemoryError; its process must end then.
    """
    members = group_size(judged)
    try:
        return outcomes(reward(*arguments(kind, task, judged)), members)
    except MemoryError:
        raise
    except (Exception, SystemExit) as err:  # noqa: BLE001 - rewards are user code
        return (raised(err),) * (members or 1)


def group_size(judged: Judged) -> int | None:
    """The number of rollouts of a group; None for a single rollout."""
    return None if isinstance(judged, str | Trajectory) else len(judged)
