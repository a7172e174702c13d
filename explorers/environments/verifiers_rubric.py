"""The rubric of an environment of verifiers, asked so that a failure of it is never a zero."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

from explorers.rewards.contract import error_cause
from rft_data.core.errors import RecipeError
from rft_data.core.protocols import Unscored
from rft_data.core.words import UnscoredCause

_raised: ContextVar[list[tuple[str, Exception]]] = ContextVar("raised")
"""Functions that raised while one rollout is scored."""


class WatchedRubric:
    """Scores rollouts by the rubric; verifiers itself gives 0.0 for a function that raised."""

    def __init__(self, environment: Any, name: str) -> None:
        """Watch every function of the rubric. `name`: of the environment, for messages.

        Raises: RecipeError for a rubric that compares the rollouts of a group.
        """
        self._rubric = environment.rubric
        self._weighted = False
        for rubric in _rubrics(environment):
            groups = [one.__name__ for one in rubric.funcs if rubric._is_group_func(one)]
            if _scores_groups(rubric):
                groups.append(f"{type(rubric).__name__}.score_group")
            if groups:
                raise RecipeError(
                    f"the rubric of the verifiers environment '{name}' compares the rollouts of a group in "
                    f"{groups}; each rollout is scored by itself here: take them out, and write a reward of "
                    "the whole group (docs/rewards.md)."
                )
            rubric.funcs[:] = [_watched(one) for one in rubric.funcs]
            self._weighted = self._weighted or any(rubric.weights)

    async def score(self, state: Any) -> tuple[float, Mapping[str, float]] | Unscored | None:
        """The reward of a rollout and its metrics; None where no function has a weight."""
        raised: list[tuple[str, Exception]] = []
        token = _raised.set(raised)
        try:
            await self._rubric.score_group([state])
        finally:
            _raised.reset(token)
        if raised:
            name, error = raised[0]
            return Unscored(f"'{name}' of the rubric raised {type(error).__name__}: {error}", _cause(error))
        return (state["reward"], dict(state["metrics"] or {})) if self._weighted else None


def _scores_groups(rubric: Any) -> bool:
    """Whether a rubric has a way of its own to score a group, which may compare its rollouts."""
    return not type(rubric).score_group.__module__.startswith("verifiers.")


def environments(environment: Any) -> list[Any]:
    """An environment, and those that it is a group of."""
    return [environment, *(one for inner in getattr(environment, "envs", ()) for one in environments(inner))]


def _rubrics(environment: Any) -> Iterator[Any]:
    waiting = [one.rubric for one in environments(environment)]
    seen: list[Any] = []
    while waiting:
        rubric = waiting.pop()
        if not any(rubric is one for one in seen):
            seen.append(rubric)
            waiting += getattr(rubric, "rubrics", ())
            yield rubric


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which also writes down that it raised, or returned no number."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> float:
        try:
            result = function(*args, **kwargs)
            return float(await result if inspect.isawaitable(result) else result)
        except Exception as err:  # verifiers makes a zero of it
            _raised.get().append((getattr(function, "__name__", repr(function)), err))
            raise

    return call


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
