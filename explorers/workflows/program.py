"""A world as a program that speaks to a model: a command in a child process, or a function with a client.

Neither is changed: the program asks an OpenAI server whose model is the run's own engine, and what it samples
is recorded with its exact tokens.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from explorers.conversations.rollout_app import MODEL, RolloutApp
from explorers.rewards.scoring import Rewards
from explorers.workflows.function import playable
from explorers.workflows.model_server import ModelServer
from explorers.workflows.program_process import Ended, own_environment, resolved, run_program
from explorers.workflows.recorded import (
    ConversationArguments,
    Course,
    RecordedWorkflow,
    WorldReward,
    whole_number,
)
from explorers.workflows.rollout_server import Access, RolloutServer, stated_reward
from explorers.workflows.server_settings import SMALL
from rft_data.core.engine import Engine
from rft_data.core.errors import RecipeError, RftError, RowError
from rft_data.core.lookup import load, need
from rft_data.core.rows import Experience, Task
from rft_data.core.workflow import RolloutContext

_SHOWN = 400
_FOLDER = "rft-program-"


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ProgramLimits(TypedDict, total=False):
    """Limits of one program."""

    processes: int
    deadline_s: float | None
    output_kb: int


class ProgramWorkflow(RecordedWorkflow):
    """Plays a rollout by running a program whose model is the policy."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        command: Sequence[str] | None = None,
        agent: str | None = None,
        args: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        limits: ProgramLimits | None = None,
        server: str | Mapping[str, object] = SMALL,
        **conversation: Unpack[ConversationArguments],
    ) -> None:
        """Find the program; what is wrong with the arguments shows at the start.

        Args:
            tokenizer: the model's.
            rewards: the recipe's, beside the program's own.
            command: the program and its arguments; each rollout is a process.
            agent: instead, import path of `async def agent(task, client)`.
            args: of the agent, beside the task and the client.
            environment: variables of the command, beside those that every program gets.
            limits: `processes` that run at a time (64), `deadline_s` of one (none beside the rollout's),
                `output_kb` of its output that are kept (16).
            server: what answers it; see `ModelServer`.
            conversation: further arguments of `RecordedWorkflow`.

        Raises: RecipeError, UnknownComponentError.
        """
        super().__init__(tokenizer, rewards, **conversation)
        need("uvicorn", "web", "the workflow 'program'")
        need("openai", "ops", "the workflow 'program'")
        if (command is None) == (agent is None):
            raise RecipeError("the workflow 'program' takes one of the arguments 'command' and 'agent'.")
        self._limits: ProgramLimits = {"processes": 64, "deadline_s": None, "output_kb": 16, **(limits or {})}
        _check_limits(self._limits)
        self._args, self._environment = dict(args or {}), _texts(environment or {})
        self._command = None if command is None else resolved(command)
        self._agent = None if agent is None else playable(agent, load(agent, "agent"), self._args, "client")
        self._places = asyncio.Semaphore(self._limits["processes"])
        self._rollout_server = RolloutServer()
        told = conversation.get("chat_template_kwargs")
        self._server = ModelServer(self, server, told)

    @property
    def needs_texts(self) -> bool:
        """Whether the engine needs the model's tokenizer."""
        return self._server.is_vllm

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout.

        Raises: ConnectionError when the program crashed, TimeoutError past its deadline: no reward is made of
            either. RowError when it crashed because a request of it was refused, and what the engine raised.
        """
        app, course = await self._server.app(engine, ctx), Course()
        given = replace(task, messages=self.prompt(task))
        try:
            async with self._rollout_server.open(app) as access:
                await (self._run_command if self._agent is None else self._run_agent)(given, access, course)
        finally:
            if isinstance(app.error, RftError) and not isinstance(app.error, RowError):
                raise app.error  # the engine's fault, whatever the program made of it
        course.turns = app.turns
        course.end = app.end or course.end
        return await self.outcome(task, app.rows(task, ctx), course)

    async def _run_command(self, task: Task, access: Access, course: Course) -> None:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=_FOLDER))
        try:
            async with self._rollout_server.served() as address, self._places:
                ended = await self._ended(folder, self._variables(task, access, address, folder), access.key)
            course.state = {
                "output": ended.output,
                "status": ended.status,
                "seconds": round(ended.seconds, 3),
            }
            if ended.status != 0 and access.app.end is None:
                raise _crashed(ended, access.app)
            course.reward = await asyncio.to_thread(_left_reward, folder, access)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    async def _ended(self, folder: Path, variables: Mapping[str, str], key: str) -> Ended:
        """Raises: TimeoutError past the deadline of a program."""
        assert self._command is not None  # noqa: S101 - a workflow of a command
        environment = own_environment({**variables, **self._environment}, folder)
        most = self._limits["output_kb"]
        running = run_program(self._command, environment, folder, output_kb=most, key=key)
        try:
            async with asyncio.timeout(self._limits["deadline_s"]):
                return await running
        except TimeoutError as err:
            raise TimeoutError(
                f"the program took longer than {self._limits['deadline_s']:g} s and was killed"
            ) from err

    async def _run_agent(self, task: Task, access: Access, course: Course) -> None:
        import httpx2
        import openai

        assert self._agent is not None  # noqa: S101 - a workflow of an agent
        transport = httpx2.ASGITransport(app=self._rollout_server)  # type: ignore[arg-type]
        async with (
            httpx2.AsyncClient(transport=transport) as http,
            openai.AsyncOpenAI(
                base_url=f"http://rollout/t/{access.name}/v1",
                api_key=access.key,
                http_client=http,
                max_retries=0,
            ) as client,
        ):
            try:
                course.reward = await self._agent(deepcopy(task), client, **self._args)
            except Exception:
                if access.app.end is None:
                    raise
        course.reward = access.reward if course.reward is None else course.reward

    def _variables(self, task: Task, access: Access, address: str, folder: Path) -> dict[str, str]:
        """The environment of a program; writes the task's file."""
        place = f"{address}/t/{access.name}"
        told = {name: getattr(task, name) for name in ("messages", "answer", "metadata", "tools")}
        (folder / "task.json").write_text(json.dumps({"task_id": task.task_id, **told}), "utf-8")
        variables = {
            "OPENAI_BASE_URL": f"{place}/v1",
            "OPENAI_API_KEY": access.key,
            "OPENAI_MODEL": MODEL,
            "RFT_TASK": str(folder / "task.json"),
            "RFT_REWARD": str(folder / "reward.json"),
            "RFT_REWARD_URL": f"{place}/reward",
        }
        if self._server.is_vllm:
            anthropic = {
                "ANTHROPIC_BASE_URL": place,
                "ANTHROPIC_API_KEY": access.key,
                "ANTHROPIC_MODEL": MODEL,
            }
            variables |= anthropic
        return variables


def _left_reward(folder: Path, access: Access) -> WorldReward:
    """The reward in the program's file, or else what it posted. Raises: RowError for one that is none."""
    try:
        text = (folder / "reward.json").read_text("utf-8", "replace")
    except FileNotFoundError:
        return access.reward
    return stated_reward(text)


def _crashed(ended: Ended, app: RolloutApp) -> Exception:
    output = f"; the end of its output: {ended.output[-_SHOWN:]!r}" if ended.output else ""
    if isinstance(app.error, RowError):
        return RowError(f"the program ended with {ended.how} after this was refused: {app.error}{output}")
    return ConnectionError(f"the program ended with {ended.how}{output}")


def _check_limits(limits: Mapping[str, object]) -> None:
    """Raises: RecipeError."""
    known = ("processes", "deadline_s", "output_kb")
    for name in limits:
        if name not in known:
            raise RecipeError(f"workflow argument 'limits' has {name!r}; it may have: {', '.join(known)}.")
    whole_number("limits.processes", limits["processes"], least=1)
    whole_number("limits.output_kb", limits["output_kb"], least=1)
    most = limits["deadline_s"]
    if most is not None and (isinstance(most, bool) or not isinstance(most, int | float) or not most > 0):
        raise RecipeError(f"workflow argument 'limits.deadline_s' is {most!r}; wanted seconds above 0.")


def _texts(environment: Mapping[str, object]) -> dict[str, str]:
    """Raises: RecipeError for a variable that is no text or number."""
    for name, value in environment.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise RecipeError(f"workflow argument 'environment.{name}' is {value!r}; wanted a text.")
    return {name: str(value) for name, value in environment.items()}
