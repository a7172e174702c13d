"""Shared by the workflows that give each rollout an environment of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from explorers.environments.pool import EnvironmentPool, PoolPlan
from explorers.rewards.scoring import Rewards
from explorers.workflows.recorded import ConversationArguments, RecordedWorkflow, whole_number
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest
from rft_data.core.rows import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

E = TypeVar("E")


class PoolArguments(ConversationArguments, total=False):
    """The same for workflows with environments; see `PooledWorkflow`."""

    pool: Mapping[str, object] | None


class TurnArguments(PoolArguments, total=False):
    """The same where the turns and the calls have defaults of the workflow's own."""

    turns: int
    call_deadline_s: float


class ResetFailed(RuntimeError):
    """An environment raised in its `reset`."""


class PooledWorkflow(RecordedWorkflow, Generic[E]):
    """Base of the tool loop and the environment loop."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        pooled: Callable[[PoolPlan], EnvironmentPool[E]],
        *,
        turns: int,
        call_deadline_s: float,
        pool: Mapping[str, object] | None = None,
        **conversation: Unpack[ConversationArguments],
    ) -> None:
        """Make a first environment, so that a mistake shows at the start.

        Args:
            tokenizer: the model's.
            rewards: the recipe's.
            pooled: makes the pool.
            turns: most turns of the model.
            call_deadline_s: for one call of an environment.
            pool: fields of `PoolPlan`.
            conversation: further arguments of `RecordedWorkflow`.

        Raises: RecipeError.
        """
        super().__init__(tokenizer, rewards, **conversation)
        self.turns = whole_number("turns", turns, least=1)
        self.call_deadline_s = _seconds("call_deadline_s", call_deadline_s)
        self.pool = pooled(_plan(pool))
        self.first = self.pool.check()
        """The first environment, which is idle in the pool."""

    def metrics(self) -> dict[str, float]:
        """Counts since the last call; environments that are open now, and those that were not closed."""
        pool = {"environments_open": float(self.pool.open), "environment_leaks": float(self.pool.leaks)}
        return {**super().metrics(), **pool}

    def close(self) -> None:
        """Close the environments that no rollout has."""
        self.pool.close()


def _plan(settings: Mapping[str, object] | None) -> PoolPlan:
    """The plan of a pool from a recipe. Raises: RecipeError for an unknown field, or a value out of range."""
    given: dict[str, Any] = dict(settings or {})
    known = PoolPlan.__slots__
    for name in given:
        if name not in known:
            raise RecipeError(
                f"explorer.workflow.args.pool.{name} is not known;{suggest(name, known)} Known: "
                f"{', '.join(known)}."
            )
    plan = PoolPlan(**given)
    whole_number("pool.size", plan.size, least=1)
    whole_number("pool.warm", plan.warm, least=0)
    _seconds("pool.start_deadline_s", plan.start_deadline_s)
    return plan


def _seconds(name: str, value: object) -> float:
    """`value`, when it is a number of seconds above 0. Raises: RecipeError when it is not."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise RecipeError(f"explorer.workflow.args.{name} is {value!r}; wanted seconds above 0.")
    return float(value)


@contextmanager
def in_reset(name: str) -> Iterator[None]:
    """Say that an error came from `reset`. What may pass (a connection, a time-out) keeps its type."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except Exception as err:
        raise ResetFailed(f"'{name}' raised in reset: {type(err).__name__}: {err}") from err


def with_observation(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with `text` at the end of the last one, or after it where that is no user's."""
    found: list[Message] = [dict(message) for message in messages]
    if not text:
        return found
    if found and found[-1]["role"] == "user" and isinstance(found[-1]["content"], str):
        return [*found[:-1], {**found[-1], "content": found[-1]["content"] + text}]
    return [*found, {"role": "user", "content": text.lstrip()}]
