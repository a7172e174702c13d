"""A world as a function: `async def play(task, model)` plays one rollout and returns its reward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from explorers.rewards.scoring import Rewards
from explorers.workflows.recorded import ConversationArguments, Course, RecordedWorkflow, WorldReward
from rft_data.core.engine import Engine
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import load
from rft_data.core.rows import Experience, Task
from rft_data.core.workflow import RolloutContext

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Play = Callable[..., Coroutine[object, None, WorldReward]]


class FunctionWorkflow(RecordedWorkflow):
    """Plays a rollout by calling a coroutine function with the task and a model that records."""

    always_chats = False

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        play: str,
        args: Mapping[str, object] | None = None,
        **conversation: Unpack[ConversationArguments],
    ) -> None:
        """Load the function and check that it can be called.

        Args:
            tokenizer: the model's.
            rewards: the recipe's, beside what the function returns.
            play: import path of the function.
            args: keyword arguments of the function beside the task and the model.
            conversation: further arguments of `RecordedWorkflow`.

        Raises: UnknownComponentError; RecipeError for anything but such a function.
        """
        super().__init__(tokenizer, rewards, **conversation)
        self._args = dict(args or {})
        self._play = playable(play, load(play, "function"), self._args)

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout. Where the function lets ContextOverflow or BudgetSpent pass, that is its end."""
        model, course = self.model(engine, ctx), Course()
        with course.ended_by_limits():
            given = deepcopy(replace(task, messages=self.prompt(task)))  # the function may change it
            course.reward = await self._play(given, model, **self._args)
        course.turns = model.turns
        return await self.outcome(task, model.rows(task, ctx), course)


def playable(name: str, play: object, args: Mapping[str, object], asked: str = "model") -> Play:
    """`play`, checked; `asked`: what its second argument is.

    Raises: RecipeError for what is no coroutine function of a task, a model (or client) and `args`.
    """
    if not inspect.iscoroutinefunction(play):
        raise RecipeError(
            f"workflow function '{name}' is no coroutine function; write `async def play(task, {asked})`."
        )
    try:
        inspect.signature(play).bind(None, None, **args)
    except TypeError as err:
        raise RecipeError(
            f"workflow function '{name}' cannot be called with a task, a {asked} and the arguments "
            f"{sorted(args)} ({err}); write `async def play(task, {asked})`, or correct 'args'."
        ) from err
    checked: Play = play
    return checked
