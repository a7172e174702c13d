"""The prompts with which rollouts begin, as their workflows ask for them; nothing is sampled.

A workflow is played up to its first request, so that what its world shows and the tools it offers are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Never, cast

from explorers.rewards.scoring import Rewards
from explorers.workflows.make import close_workflow, make_workflow, needs_texts
from explorers.workflows.pooled import PooledWorkflow
from rft_data.core.engine import Sampling
from rft_data.core.errors import ContextOverflow, RecipeError
from rft_data.core.rows import Message, Task
from rft_data.core.words import RowSource
from rft_data.core.workflow import RolloutContext, Workflow
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.recipe.workflow_args import PlayedWorkflow
from rft_data.run.debug.chosen import Prompt, seen
from rft_data.run.programs import SandboxPlace, workflow_in_sandbox

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PLAYED = 16
"""Tasks of a taskset that are played: a world may be a program or a container."""
_DEADLINE_S = 60.0
"""For the beginning of a rollout, and for its end."""
_NOT_PLAYED = ("single_turn", "served")
"""Workflows that ask with the task as it is, and those whose clients ask."""
_Asked = tuple[Sequence[Message], Sequence[Mapping[str, Any]] | None]


class FirstPrompts:
    """Asks the workflows of a recipe, each of which is made once; to be closed."""

    def __init__(self, recipe: ExplorerRecipe, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Args: tokenizer: of the model that plays; None where an endpoint has it."""
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._watched = None if tokenizer is None else _WatchedTokenizer(tokenizer)
        self._opened = ExitStack()
        self._loop = self._opened.enter_context(asyncio.Runner())
        self._rewards = self._opened.enter_context(closing(Rewards({}, {})))
        self._made: dict[str, Workflow] = {}
        self._sandbox = SandboxPlace()

    def make(self, played: PlayedWorkflow) -> Workflow:
        """One of the recipe's workflows, with a first environment and the certificate of its template.

        Raises: RecipeError, UnknownComponentError, MissingExtraError, SandboxError.
        """
        key = played.model_dump_json()
        if key not in self._made:
            settings = workflow_in_sandbox(self._recipe.explorer, self._sandbox, played.model_dump())
            made = make_workflow(settings, cast("Any", self._watched), self._rewards)
            self._made[key] = made
            self._opened.callback(close_workflow, made)
        return self._made[key]

    def some(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Those of a taskset's tasks that are looked at: all where nothing needs to be played."""
        return tasks[:_PLAYED] if any(self._chosen(task).use not in _NOT_PLAYED for task in tasks) else tasks

    def prompt(self, task: Task) -> Prompt:
        """The first prompt of a rollout of the task; of a program that asks vLLM's server, the task's own.

        Raises: RecipeError for a rollout that does not begin, or a prompt that the template cannot render.
        """
        played = self._chosen(task)
        if played.use in _NOT_PLAYED or needs_texts(workflow := self.make(played)):
            return seen(self._recipe, self._tokenizer, task)
        if self._watched is not None:
            self._watched.shown = None
        asked = self._loop.run(self._asked(workflow, task, played.use))
        if self._watched is None or self._tokenizer is None:
            messages, tools = cast("_Asked", asked)
            return Prompt(messages, tools=tools)
        messages, tools = self._watched.shown or (task.messages, None)
        ids = cast("Sequence[int]", asked)
        return Prompt(messages, self._tokenizer.decode(ids), ids, tools)

    def close(self) -> None:
        """Close the workflows, the last one that was made first."""
        self._opened.close()

    def _chosen(self, task: Task) -> PlayedWorkflow:
        section = self._recipe.explorer
        return section.workflows.get(task.workflow or "", section.workflow)

    async def _asked(self, workflow: Workflow, task: Task, use: str) -> Sequence[int] | _Asked:
        """The first request of a rollout: token ids, or messages and tools."""
        engine = _Listener(ends=isinstance(workflow, PooledWorkflow))
        sampling = Sampling(self._recipe.explorer.max_tokens)
        place = RolloutContext("debug", f"debug/{task.task_id}", 0, 0, "debug", RowSource.PROBE, sampling)
        playing = asyncio.ensure_future(workflow.run(task, engine, place))
        first: set[asyncio.Future[Any]] = {playing, engine.asked}
        await asyncio.wait(first, timeout=_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        if engine.asked.done() and engine.ends:
            await asyncio.wait({playing}, timeout=_DEADLINE_S)
        late = not playing.done()
        playing.cancel()
        await asyncio.wait({playing}, timeout=_DEADLINE_S)
        await asyncio.sleep(0)  # a world that is closed now begins to
        error = playing.exception() if playing.done() and not playing.cancelled() else None
        if engine.asked.done():
            return engine.asked.result()
        why = f"took longer than {_DEADLINE_S:g} s" if late else "ended without asking the model anything"
        if error is not None:
            why = f"raised {type(error).__name__}: {str(error).rstrip('.')}"
        raise RecipeError(
            f"taskset '{task.taskset}': the workflow '{use}' cannot begin a rollout of task "
            f"'{task.task_id}': it {why}."
        ) from error


class _Listener:
    """An engine that samples nothing: it hears what is asked first."""

    version = 0
    endpoint: Mapping[str, str] = {}

    def __init__(self, *, ends: bool) -> None:
        """`ends`: its answer is that there is no room, which ends a rollout in order; else it gives none."""
        self.ends = ends
        self.asked: asyncio.Future[Sequence[int] | _Asked] = asyncio.get_running_loop().create_future()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Never:
        """Hear token ids."""
        await self._hear(list(prompt_ids))

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, sampling: Sampling
    ) -> Never:
        """Hear messages, as an endpoint would."""
        await self._hear((list(messages), tools))

    async def _hear(self, asked: Sequence[int] | _Asked) -> Never:
        if not self.asked.done():
            self.asked.set_result(asked)
        if self.ends:
            raise ContextOverflow("the first prompt was all that was wanted.")
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets was set")

    def load_weights(self, ref: object) -> float:
        """It has none."""
        raise NotImplementedError

    def close(self) -> None:
        """It holds nothing."""


class _WatchedTokenizer:
    """A tokenizer that remembers the last messages, and the tools, of which it made a prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.shown: _Asked | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *texts: Any, **options: Any) -> Any:
        return self._tokenizer(*texts, **options)

    def apply_chat_template(self, conversation: Sequence[Message], **options: Any) -> Any:
        """As the tokenizer does it."""
        if options.get("add_generation_prompt"):
            self.shown = list(conversation), options.get("tools")
        return self._tokenizer.apply_chat_template(cast("Any", conversation), **options)
