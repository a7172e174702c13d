"""vLLM's own OpenAI server over a run's engine, for programs of rollouts: the routes of `rft serve`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any

from explorers.capture.answers import refuse
from explorers.capture.asgi import Event, Receive, Scope, Send
from explorers.capture.capture import Capture, Open
from explorers.capture.gate import Gate, capturing
from explorers.capture.limits import CaptureLimits
from explorers.capture.openai_app import AppArguments
from explorers.capture.trajectory import Trajectory
from explorers.conversations.rollout_app import MODEL, OVER
from explorers.conversations.template import ChatTemplate
from explorers.engines.vllm_engine import VllmEngine
from explorers.meter import MeteredEngine
from rft_data.core.engine import Engine, Sampling
from rft_data.core.errors import ContextOverflow, RecipeError, RowError
from rft_data.core.rows import Experience, Task
from rft_data.core.words import RolloutEnd
from rft_data.core.workflow import RolloutContext

_OVERLONG = ("maximum context length", "max_tokens must be at least 1, got 0")
"""How vLLM says that the context is full, by more than it has or just so; the gate takes no 0 of a client."""
_LIMITS = CaptureLimits(body_bytes=32 << 20, bodies_bytes=1 << 30, requests=1 << 16, key_requests=256)
_BUSY = (401, 409, 429)
"""Refusals that say nothing of what was asked."""
_MOST_READ = 1 << 16


class CapturedApp:
    """The model of one rollout behind the server. See `RolloutApp`."""

    def __init__(self, gate: Gate, trajectory: Trajectory) -> None:
        """Made in the rollout's own asyncio task: what is sampled is metered as its."""
        self._gate = gate
        self._opened = Open(trajectory)
        self._context = copy_context()
        self._answering: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; after the end of the rollout it is refused."""
        said = _Said(self._opened.trajectory, scope["path"], send, self._over)
        if self._over.is_set():
            await said.refuse()
            return
        work = self._gate.answer(self._opened, scope["path"], scope, self._until_over(receive), said)
        answering = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._answering.add(answering)
        try:
            await answering
        finally:
            answering.cancel()
            self._answering.discard(answering)
        if self._over.is_set():
            await said.refuse()

    @property
    def answering(self) -> int:
        """Requests that are being answered."""
        return len(self._answering)

    @property
    def turns(self) -> int:
        """Turns sampled so far."""
        return len(list(self._opened.trajectory.turns))

    @property
    def held(self) -> int:
        """Tokens that its rows have so far."""
        return self._opened.trajectory.held

    @property
    def end(self) -> RolloutEnd | None:
        """The limit that ended the rollout."""
        return self._opened.trajectory.end

    @property
    def error(self) -> Exception | None:
        """Error of a request that failed, which the program may have swallowed."""
        return self._opened.trajectory.error

    def rows(self, task: Task, ctx: RolloutContext) -> list[Experience]:
        """The rows of what was sampled so far, without a reward."""
        return self._opened.trajectory.rows(task, ctx)

    async def close(self) -> None:
        """Give up what is being sampled: vLLM's server is told that its clients have gone."""
        self._opened.trajectory.closed = True
        self._over.set()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def _until_over(self, receive: Receive) -> Receive:
        async def received() -> Event:
            getting = asyncio.ensure_future(receive())
            over = asyncio.ensure_future(self._over.wait())
            try:
                await asyncio.wait({getting, over}, return_when=asyncio.FIRST_COMPLETED)
                return getting.result() if getting.done() else {"type": "http.disconnect"}
            finally:
                getting.cancel()
                over.cancel()

        return received


class _Said:
    """Passes an answer on, and keeps why a request was refused; what comes after the end is not passed on."""

    def __init__(self, trajectory: Trajectory, route: str, send: Send, over: asyncio.Event) -> None:
        self._trajectory = trajectory
        self._route = route
        self._send = send
        self._over = over
        self._status = 0
        self._body = b""

    async def __call__(self, message: Event) -> None:
        """Pass one message on."""
        if message["type"] == "http.response.start":
            if self._over.is_set():
                return
            self._status = int(message["status"])
        if self._status:
            self._read(message)
            await self._send(message)

    async def refuse(self) -> None:
        """Answer that the rollout has ended, if nothing was answered yet."""
        if not self._status:
            self._status = 409
            await refuse(self._send, self._route, 409, OVER)

    def _read(self, message: Event) -> None:
        if not 400 <= self._status < 500 or self._status in _BUSY:
            return
        self._body += message.get("body", b"")[: _MOST_READ - len(self._body)]
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._note(_text(self._body))

    def _note(self, text: str) -> None:
        trajectory = self._trajectory
        if any(said in text for said in _OVERLONG):
            trajectory.failed(ContextOverflow(text))
        elif trajectory.end is None and trajectory.error is None:
            trajectory.failed(RowError(text))


class CaptureServer:
    """Makes the applications of a workflow's rollouts; vLLM's server starts with the first."""

    def __init__(self, template: ChatTemplate, of_app: Mapping[str, Any]) -> None:
        """`of_app`: arguments of `openai_app`."""
        self._capture = Capture(template, Sampling(1), limits=_LIMITS)
        self._of_app = dict(of_app)
        self._made: tuple[asyncio.AbstractEventLoop, asyncio.Task[Gate]] | None = None

    async def app(self, engine: Engine, trajectory: Trajectory) -> CapturedApp:
        """The application of one rollout. Raises: RecipeError for an engine or a parser that cannot do it."""
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            self._made = loop, loop.create_task(self._gate(engine))
        return CapturedApp(await asyncio.shield(self._made[1]), trajectory)

    async def _gate(self, engine: Engine) -> Gate:
        inner = engine.metered if isinstance(engine, MeteredEngine) else engine
        if not isinstance(inner, VllmEngine) or not inner.texts:
            raise RecipeError(
                f"explorer.workflow.args.server is 'vllm', and the engine is {type(inner).__name__}; vLLM's "
                "server needs the engine 'vllm' in one process: say server: small, or change the engine."
            )
        metering: AppArguments = {"metering": engine.sampling} if isinstance(engine, MeteredEngine) else {}
        return await capturing(self._capture, inner, MODEL, **self._of_app, **metering)


def _text(body: bytes) -> str:
    """The message in the body of an error; a body of another form cut at 400 bytes."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"])
    except (ValueError, KeyError, TypeError):
        return body[:400].decode("utf-8", "replace")
