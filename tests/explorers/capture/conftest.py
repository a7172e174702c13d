"""One engine over a tiny model with its server, and a driver of trajectories without an engine."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from explorers.capture.capture import Capture
from explorers.capture.control import control_app
from explorers.capture.gate import Front, Gate, capturing
from explorers.capture.journal import Journal
from explorers.capture.limits import CaptureLimits
from explorers.capture.listening import listening
from explorers.capture.service import Service
from explorers.capture.store import TrajectoryStore
from explorers.capture.trajectory import Asked, Trajectory
from explorers.conversations.messages import one_form
from explorers.conversations.template import ChatTemplate
from explorers.engines.vllm_engine import VllmEngine
from rft_data.buffer import Buffer
from rft_data.core.engine import Sampling
from rft_data.core.files import write_manifest
from rft_data.core.rows import Experience, Task, WeightRef
from rft_data.core.words import RowSource, TemplatePolicy
from rft_data.core.workflow import RolloutContext
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import FAMILIES
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import publishable

T = TypeVar("T")
ROOM = 256
CONTEXT = RolloutContext("run", "g", 0, 0, "e0", RowSource.ROLLOUT, Sampling(64))


@dataclass
class Talk:
    """A trajectory whose server renders every history anew, and whose model says what a test wants."""

    trajectory: Trajectory

    @property
    def template(self) -> ChatTemplate:
        return self.trajectory.template

    def asked(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> Asked:
        return Asked(self.trajectory, messages, tools)

    def say(
        self, messages: Sequence[Any], text: str, *, ids: list[int] | None = None, tools: Any = None
    ) -> str:
        """Ask with `messages`; the model says `text` (as `ids`, where these are given) and ends its turn."""
        asked = self.asked(messages, tools)
        prompt = self.template.prompt(one_form(messages), tools)
        [turn] = self.trajectory.begin(prompt, asked, 1, 64)
        end = self.template.ids(self.template.ending())[:1]
        turn.sampled = [*(self.template.ids(text) if ids is None else ids), *end]
        turn.logprobs = [-0.5] * len(turn.sampled)
        self.trajectory.finish(turn, "stop", [(0, 0, len(turn.sampled))], asked)
        self.trajectory.settle(64)
        assert turn.reply is not None
        return turn.reply.content

    def rows(self) -> list[Experience]:
        return self.trajectory.rows(Task("t", self.trajectory.prompt), CONTEXT)


@pytest.fixture(scope="session")
def spoken() -> Qwen2Tokenizer:
    return trained_tokenizer()


@pytest.fixture
def talk(spoken: Qwen2Tokenizer) -> Callable[..., Talk]:
    def made(family: str = "qwen2.5", policy: TemplatePolicy = TemplatePolicy.FORK) -> Talk:
        tokenizer = copy.copy(spoken)
        tokenizer.chat_template = FAMILIES[family]
        return Talk(Trajectory("t", ChatTemplate(tokenizer), Sampling(64), "hash", policy))

    return made


class Loop:
    """An event loop in a thread of its own: the engine and its server live there, clients elsewhere."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@dataclass
class Recorded:
    """A server over an engine, which records."""

    address: str
    capture: Capture
    loop: Loop
    engine: VllmEngine
    model: Path

    def open(self, **changes: Any) -> tuple[Trajectory, openai.OpenAI]:
        """A trajectory and an unchanged client of it."""
        trajectory = self.loop.run(self._opened(changes))
        return trajectory, self.client(trajectory.id)

    def client(self, name: str, key: str | None = None) -> openai.OpenAI:
        base = self.address + Capture.path(name)
        transport = httpx.Client(trust_env=False)
        return openai.OpenAI(
            base_url=base, api_key=key or self.capture.key(name), max_retries=0, http_client=transport
        )

    def rows(self, trajectory: Trajectory) -> list[Experience]:
        return trajectory.rows(Task("t", trajectory.prompt), CONTEXT)

    async def _opened(self, changes: dict[str, Any]) -> Trajectory:
        return self.capture.open(**changes)


@dataclass
class Served(Recorded):
    """The one server of these tests, which stores what it records."""

    buffer: Buffer
    service: Service
    gate: Gate


SAMPLING = Sampling(12, temperature=0.7)
TOKEN = "a-token-of-these-tests"  # noqa: S105


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("capture")
    model = build_tiny_model(folder / "model", seed=3, hidden_size=64, num_layers=2, num_heads=2)
    version = folder / "v0"
    version.mkdir()
    publishable(model, version)
    write_manifest(version, {"run_id": "run", "version": 0, "step": 0})
    loop = Loop()
    buffer = Buffer(str(folder / "buffer"))
    engine = VllmEngine(model, seed=0, max_model_len=ROOM, options={}, texts=True, own_thread=True)
    engine.load_weights(WeightRef("run", 0, 0, str(version)))
    template = ChatTemplate(AutoTokenizer.from_pretrained(model))
    capture = Capture(template, SAMPLING, limits=CaptureLimits(key_requests=8))
    store = TrajectoryStore(buffer, Journal(folder / "open.jsonl"), "served")
    service = Service(capture, store, engine, deadline_s=3600.0)
    stack = AsyncExitStack()
    address, gate = loop.run(_listening(stack, service, engine))
    yield Served(address, capture, loop, engine, model, buffer, service, gate)
    loop.run(stack.aclose())
    store.close()
    buffer.close()
    engine.close()
    loop.close()


async def _listening(stack: AsyncExitStack, service: Service, engine: VllmEngine) -> tuple[str, Gate]:
    gate = await capturing(service.capture, engine, "tiny", tool_parser="hermes")
    front = Front(gate, control_app(service), 10_000, TOKEN)
    return await stack.enter_async_context(listening(front)), gate
