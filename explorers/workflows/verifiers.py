"""A world as an environment of the package `verifiers`, played unchanged: it asks a model that records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Unpack

from explorers.conversations.asked import checked_limits
from explorers.conversations.certificate import TOOLS
from explorers.conversations.openai_client import RolloutClient
from explorers.environments.verifiers_rubric import WatchedRubric, environments
from explorers.rewards.scoring import Rewards
from explorers.workflows.recorded import ConversationArguments, Course, RecordedWorkflow, WorldReward
from rft_data.core.engine import Engine, Sampling
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import Experience, Task
from rft_data.core.words import RolloutEnd
from rft_data.core.workflow import RolloutContext
from rft_data.tasks.verifiers_environment import verifiers_environment

if TYPE_CHECKING:
    import verifiers as vf
    from transformers import PreTrainedTokenizerBase

_CLOSE_S = 10.0
"""How long to wait for an environment's teardown."""


class _Client(RolloutClient):
    """The client of one rollout, by which its state is found when the environment raises."""

    state: vf.State | None = None


class VerifiersWorkflow(RecordedWorkflow):
    """Plays an environment of verifiers; its rubric's reward is the world's, its metrics are the parts."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        environment: str,
        args: Mapping[str, object] | None = None,
        **conversation: Unpack[ConversationArguments],
    ) -> None:
        """Load the environment, with its datasets.

        Args:
            tokenizer: the model's.
            rewards: the recipe's, beside the rubric's.
            environment: id of an installed environment, its file, or the import path of what makes it.
            args: keyword arguments of its `load_environment`.
            conversation: further arguments of `RecordedWorkflow`.

        Raises: MissingExtraError, UnknownComponentError; RecipeError for an environment that cannot be made,
            or whose sampling cannot be played here.
        """
        self._environment = made = verifiers_environment(environment, dict(args or {}))
        self._name = environment
        self.always_chats = made.message_type == "chat"
        self.renders = (TOOLS,) if made.oai_tools else ()
        super().__init__(tokenizer, rewards, **conversation)
        self._sampling_args = _sampling_args(made, environment)
        made.set_interleaved_rollouts(False)  # the model goes on with its own tokens, on every engine
        self._rubric = WatchedRubric(made)
        self._groups: dict[str, dict[int, vf.State]] = {}
        """States of the rollouts of each group that is played, where the rubric compares them."""
        for one in environments(made):
            one.init_state = _keeping_state(one.init_state)

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout.

        Raises: what the model raised; ConnectionError for a failure of the environment's infrastructure, for
            it may pass; RuntimeError for any other failure of it.
        """
        model, course = self.model(engine, ctx), Course(compared=self._rubric.compares)
        if course.compared:
            self._groups.setdefault(ctx.group_id, {})
        client = _Client(model, ctx.sampling)
        asked, given = deepcopy(self._sampling_args), self._input(task)
        try:
            state = await self._environment.rollout(given, client, "policy", asked)
        except Exception:
            if client.state is not None:  # verifiers cleans up after its own errors, and when it is cancelled
                await self._environment._cleanup(client.state)
            raise
        if client.error is not None:
            raise client.error
        if client.end is None:
            self._check(state.get("error"))
        course.turns = model.turns
        course.end = client.end or self._end(state)
        course.state = {"stop_condition": state.get("stop_condition")}
        if not course.compared:
            [course.reward] = await self._rubric.score([state])
        elif ctx.group_id in self._groups:  # it was not given up meanwhile
            self._groups[ctx.group_id][ctx.member] = state
        return await self.outcome(task, model.rows(task, ctx), course)

    def waits_for_group(self, task: Task) -> bool:
        """Whether the rubric compares the rollouts of a group."""
        return self._rubric.compares

    async def score_group(
        self, task: Task, group_id: str, members: Collection[int]
    ) -> Mapping[int, WorldReward]:
        """The rubric's reward of each of these rollouts of a group, by its place."""
        kept = self._groups.pop(group_id, {})
        states = {member: kept[member] for member in sorted(members) if member in kept}
        found = await self._rubric.score(list(states.values())) if states else []
        return dict(zip(states, found, strict=True))

    def forget_group(self, task: Task, group_id: str) -> None:
        """Let go the states of a group that will not be scored."""
        self._groups.pop(group_id, None)

    def close(self) -> None:
        """Tear the environment down, in a thread: this one may run an event loop."""
        handlers = [handler for one in environments(self._environment) for handler in one._teardown_handlers]
        if not handlers:
            return

        async def torn_down() -> None:
            for handler in handlers:
                await handler()

        ending = threading.Thread(target=lambda: asyncio.run(torn_down()), daemon=True)
        ending.start()
        ending.join(_CLOSE_S)

    def _input(self, task: Task) -> dict[str, object]:
        """A row of the environment's dataset, made of the task.

        Raises: RowError for a task of none of a group's environments.
        """
        kept = deepcopy(dict(task.metadata))
        messages = deepcopy([dict(message) for message in self.prompt(task)])
        chats = self._environment.message_type == "chat"
        kinds = getattr(self._environment, "env_map", None)
        if kinds is not None and kept.get("task") not in kinds:
            raise RowError(
                f"the task's metadata has task {kept.get('task')!r}, and the group '{self._name}' has the "
                f"environments {sorted(kinds)}; take the tasks with source: {{use: verifiers}}."
            )
        return {
            "info": kept,
            "task": self._environment.env_id or "default",
            "example_id": int(task.task_id[:8], 16),
            **kept,
            "prompt": messages if chats else messages[-1]["content"],
            "answer": task.answer or "",
        }

    def _check(self, error: Exception | None) -> None:
        """Raises: for an error that ended the rollout, if it is not the model's own."""
        import openai
        import verifiers as vf

        if error is None or isinstance(error, vf.InvalidModelResponseError | vf.ToolParseError):
            return
        passing = (vf.InfraError, vf.ModelError, openai.APIConnectionError, ConnectionError, TimeoutError)
        chain = []
        link: BaseException | None = error
        while link is not None:
            chain.append(link)
            link = link.__cause__
        why = f"the verifiers environment '{self._name}' failed: {' from '.join(map(repr, chain))}"
        raise (ConnectionError if any(isinstance(one, passing) for one in chain) else RuntimeError)(why)

    def _end(self, state: vf.State) -> RolloutEnd:
        most = getattr(self._environment, "max_turns", 1)
        at_most = state.get("stop_condition") == "max_turns_reached" and most > 1
        return RolloutEnd.TURNS if at_most else RolloutEnd.FINISHED


def _sampling_args(environment: vf.Environment, name: str) -> dict[str, object]:
    """The environment's own arguments of sampling, but the temperature, which the recipe says.

    Raises: RecipeError for one that would sample from another distribution.
    """
    given = {key: value for key, value in environment.sampling_args.items() if key != "temperature"}
    try:
        checked_limits(given, Sampling(1))
    except RowError as err:
        raise RecipeError(f"the verifiers environment '{name}': {err}") from err
    return given


def _keeping_state(init_state: Callable[..., Awaitable[vf.State]]) -> Callable[..., Awaitable[vf.State]]:
    async def kept(given: vf.RolloutInput, client: _Client, *args: object, **kwargs: object) -> vf.State:
        client.state = await init_state(given, client, *args, **kwargs)
        return client.state

    return kept
