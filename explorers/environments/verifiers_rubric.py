"""The rubric of an environment of verifiers, asked so that a failure of it is never a zero."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

from explorers.rewards.contract import error_cause
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

if TYPE_CHECKING:
    import verifiers as vf
    from verifiers.types import RewardFunc

Scored: TypeAlias = tuple[float, Mapping[str, float]] | Unscored | None
"""A reward and its metrics, why there is none, or None where no function has a weight."""


@dataclass(slots=True)
class _Scoring:
    """One call of the rubric."""

    rollouts: int
    failures: list[tuple[vf.State | None, str, Exception]] = field(default_factory=list)
    """(state of the rollout, or None for all of them; name; error) of the functions that raised."""


_scoring: ContextVar[_Scoring] = ContextVar("scoring")
_state: ContextVar[vf.State | None] = ContextVar("state", default=None)
"""The state of the rollout that a function is asked about; None: all of a group."""


class WatchedRubric:
    """Scores rollouts by the rubric; verifiers itself gives 0.0 for a function that raised."""

    def __init__(self, environment: vf.Environment) -> None:
        """Watch every function of the environment's rubric."""
        self._rubric = environment.rubric
        weighted = compares = False
        for rubric in _rubrics(environment):
            own_way = _scores_groups(rubric)
            compares = compares or own_way or any(map(rubric._is_group_func, rubric.funcs))
            weighted = weighted or own_way or any(rubric.weights)
            rubric.funcs[:] = [_watched(one, rubric._is_group_func(one)) for one in rubric.funcs]
            rubric._call_individual_reward_func = _about_one(rubric._call_individual_reward_func)
        self._weighted = weighted
        self.compares = compares and weighted
        """Whether a rollout's reward depends on the others of its group."""

    async def score(self, states: Sequence[vf.State]) -> list[Scored]:
        """The rubric's scores of rollouts that were played together; of one where it compares none."""
        scoring = _Scoring(len(states))
        token = _scoring.set(scoring)
        try:
            await self._rubric.score_group(list(states))
        finally:
            _scoring.reset(token)
        return [self._scored(state, scoring.failures) for state in states]

    def _scored(self, state: vf.State, failures: Sequence[tuple[vf.State | None, str, Exception]]) -> Scored:
        for about, name, error in failures:
            if about is None or about is state:
                why = f"'{name}' of the rubric raised {type(error).__name__}: {error}"
                return Unscored(why, _cause(error))
        return (state["reward"], dict(state["metrics"] or {})) if self._weighted else None


def _scores_groups(rubric: vf.Rubric) -> bool:
    """Whether a rubric has a way of its own to score a group, which may compare its rollouts."""
    return not type(rubric).score_group.__module__.startswith("verifiers.")


def environments(environment: vf.Environment) -> list[vf.Environment]:
    """An environment, and those that it is a group of."""
    return [environment, *(one for inner in getattr(environment, "envs", ()) for one in environments(inner))]


def _rubrics(environment: vf.Environment) -> Iterator[vf.Rubric]:
    waiting = [one.rubric for one in environments(environment)]
    seen: list[vf.Rubric] = []
    while waiting:
        rubric = waiting.pop()
        if not any(rubric is one for one in seen):
            seen.append(rubric)
            waiting += getattr(rubric, "rubrics", ())
            yield rubric


def _watched(function: RewardFunc, of_group: bool) -> RewardFunc:
    """The same function, which also writes down that it raised, or returned no number of each rollout."""

    @wraps(function)
    async def call(*args: object, **kwargs: object) -> float | list[float]:
        try:
            result = function(*args, **kwargs)
            result = await result if inspect.isawaitable(result) else result
            return _numbers(result, _scoring.get().rollouts) if of_group else float(result)
        except Exception as err:  # verifiers makes a zero of it
            _scoring.get().failures.append((_state.get(), getattr(function, "__name__", repr(function)), err))
            raise

    return call


def _numbers(result: Any, wanted: int) -> list[float]:
    """The result of a function of groups. Raises: ValueError unless it is a number for each rollout."""
    plain = hasattr(result, "__len__") and not isinstance(result, str | bytes | Mapping)
    if not plain or len(result) != wanted:
        raise ValueError(f"returned {result!r:.200}; wanted one number for each of the {wanted} rollouts")
    return list(map(float, result))


def _about_one(
    call: Callable[[RewardFunc, vf.State], Awaitable[float]],
) -> Callable[[RewardFunc, vf.State], Awaitable[float]]:
    """The same method of a rubric, which also says whose rollout its function is asked about."""

    @wraps(call)
    async def told(func: RewardFunc, state: vf.State) -> float:
        token = _state.set(state)
        try:
            return await call(func, state)
        finally:
            _state.reset(token)

    return told


def _cause(error: BaseException | None) -> UnscoredCause:
    """The cause of the failure: that of the first error in its chain that shows one."""
    import openai

    while error is not None:
        if isinstance(error, openai.OpenAIError):
            return UnscoredCause.JUDGE
        if (cause := error_cause(error)) is not UnscoredCause.REWARD:
            return cause
        error = error.__cause__
    return UnscoredCause.REWARD
