"""A world as tools: the model calls the methods of a class until it answers without a call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from explorers.conversations.certificate import TOOLS
from explorers.conversations.recording import RecordingModel
from explorers.environments.calls import ToolCalls
from explorers.environments.openenv_text import offers_tools
from explorers.environments.openenv_tools import OpenEnvTools
from explorers.environments.pool import EnvironmentPool, Lent
from explorers.environments.tools import ToolClass, Toolset
from explorers.rewards.contract import error_cause
from explorers.rewards.scoring import Rewards
from explorers.workflows.pooled import PoolArguments, PooledWorkflow, in_reset, with_observation
from explorers.workflows.recorded import Course, WorldReward
from rft_data.core.engine import Engine
from rft_data.core.errors import RowError
from rft_data.core.lookup import load
from rft_data.core.rows import Experience, Message, Task
from rft_data.core.words import RolloutEnd
from rft_data.core.workflow import RolloutContext, Unscored

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ToolsWorkflow(PooledWorkflow[Any]):
    """Offers the tools of a class to the model; each rollout has an instance to itself."""

    renders = (TOOLS,)

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        tools: str,
        args: Mapping[str, object] | None = None,
        turns: int = 8,
        call_deadline_s: float = 30.0,
        **limits: Unpack[PoolArguments],
    ) -> None:
        """Load the class, check it and make a first instance.

        Args:
            tokenizer: the model's.
            rewards: the recipe's, beside the class's own `reward`.
            tools: import path of the class, or of a client of OpenEnv whose environment has MCP tools.
            args: keyword arguments of the class.
            turns: most turns of the model; the calls of the last are played too.
            call_deadline_s: for one call of a tool.
            limits: `pool` of `PooledWorkflow`, and the arguments of `RecordedWorkflow`.

        Raises: UnknownComponentError; RecipeError for a class that cannot be offered or made.
        """
        self._tools = _toolset(load(tools, "tools"), dict(args or {}), tools)
        super().__init__(
            tokenizer,
            rewards,
            partial(EnvironmentPool, tools, self._tools.make, reusable=self._tools.resets),
            turns=turns,
            call_deadline_s=call_deadline_s,
            **limits,
        )

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout."""
        model, course = self.model(engine, ctx), Course()
        async with self.pool.lend() as lent:
            prompt = await self._prompt(task, lent)
            async with self.pool.turn():
                calls = ToolCalls(self._tools, lent, self.call_deadline_s)
                with course.ended_by_limits():
                    await self._converse(model, prompt, calls, course)
                course.reward = await self._reward(lent)
        if calls.made:
            course.counts["tool_calls"] = calls.made
        if calls.failures:
            course.counts["tool_failures"] = {str(kind): count for kind, count in calls.failures.items()}
        return await self.outcome(task, model.rows(task, ctx), course)

    async def _prompt(self, task: Task, lent: Lent[Any]) -> list[Message]:
        """The task's messages, with what `reset` returned at the end of the last one."""
        if not self._tools.resets:
            return [dict(message) for message in self.prompt(task)]
        with in_reset(self._tools.name):
            observation = await self.pool.reset(
                lent, lent.environment.reset, **self._tools.reset_arguments(task)
            )
        if observation is not None and not isinstance(observation, str):
            raise RowError(
                f"'{self._tools.name}'.reset returned a {type(observation).__name__}; wanted text or None."
            )
        return with_observation(self.prompt(task), observation or "")

    async def _converse(
        self, model: RecordingModel, messages: list[Message], calls: ToolCalls[Any], course: Course
    ) -> None:
        """Turns of the model and the answers of the tools."""
        while course.turns < self.turns:
            reply = await model.chat(messages, tools=self._tools.schemas)
            course.turns += 1
            if not reply.tool_calls:
                return
            messages += [dict(reply.message), *await calls.answer(reply.tool_calls)]
            if calls.are_over:
                return
        course.end = RolloutEnd.TURNS

    async def _reward(self, lent: Lent[Any]) -> WorldReward:
        """The class's own reward; an error there leaves the rollout unscored."""
        if self._tools.reward is None:
            return None
        try:
            given: WorldReward = await lent.call(
                self.call_deadline_s, getattr(lent.environment, self._tools.reward)
            )
        except Exception as err:  # noqa: BLE001 - environments are user code
            return Unscored(f"{self._tools.reward} raised {type(err).__name__}: {err}", error_cause(err))
        return given


def _toolset(kind: object, args: Mapping[str, object], name: str) -> Toolset[Any]:
    """The tools of a class. Raises: as `ToolClass` and `OpenEnvTools`."""
    if offers_tools(kind):
        return OpenEnvTools(kind, args, name)
    return ToolClass(kind, args, name)
