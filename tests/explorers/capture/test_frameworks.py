"""Frameworks for agents, unchanged, over the capturing server: one conversation of each is one exact row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from transformers import AutoTokenizer

from explorers.capture.capture import Capture
from explorers.capture.gate import capturing
from explorers.capture.listening import listening
from explorers.capture.trajectory import CONSTRAINED, Trajectory
from explorers.conversations.template import ChatTemplate
from explorers.engines.vllm_engine import VllmEngine
from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from rft_data.core.words import Drift
from tests.docs.blocks import run_block
from tests.explorers.capture.conftest import SAMPLING, Loop, Recorded
from tests.explorers.capture.test_recorder import check_exact, trained
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import publishable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOM = 4096
"""Frameworks have long prompts, and the tiny tokenizer short tokens."""
TURNS = ("What is 2 + 2?", "And 3 + 3?")
CALLS = 3
"""Most calls of the model for one turn of the user."""
Agent = Callable[[str, str], Coroutine[Any, Any, None]]
"""Talks for as many turns, given the base URL and the key."""


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """As `served`, with room for the prompts of frameworks."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("frameworks")
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "max_position_embeddings": ROOM}
    model = build_tiny_model(folder / "model", seed=3, **shape)
    version = folder / "v0"
    version.mkdir()
    publishable(model, version)
    write_manifest(version, {"run_id": "run", "version": 0, "step": 0})
    loop, stack = Loop(), AsyncExitStack()
    engine = VllmEngine(model, seed=0, max_model_len=ROOM, options={}, texts=True)
    engine.load_weights(WeightRef("run", 0, 0, str(version)))
    capture = Capture(ChatTemplate(AutoTokenizer.from_pretrained(model)), SAMPLING)

    async def started() -> str:
        app = await capturing(capture, engine, "tiny", tool_parser="hermes")
        return await stack.enter_async_context(listening(app))

    yield Recorded(loop.run(started()), capture, loop, engine, model)
    loop.run(stack.aclose())
    engine.close()
    loop.close()


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one of them.
        b: the other.
    """
    return a + b


async def openai_agents(url: str, key: str) -> None:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel("tiny", AsyncOpenAI(base_url=url, api_key=key, max_retries=0))
    agent = agents.Agent(
        "calculator", instructions="Be brief.", model=model, tools=[agents.function_tool(add)]
    )
    said: list[Any] = []
    for turn in TURNS:
        try:
            asked = [*said, {"role": "user", "content": turn}]
            said = (await agents.Runner.run(agent, asked, max_turns=CALLS)).to_input_list()
        except agents.MaxTurnsExceeded:  # by a model that calls for ever
            break


async def agentscope(url: str, key: str, turns: Sequence[str] = TURNS) -> None:
    """Its ReAct agent, with its own streaming and memory."""
    from agentscope.agent import Agent, InjectionConfig, ReActConfig
    from agentscope.credential import OpenAICredential
    from agentscope.message import UserMsg
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, Toolkit

    allowed = PermissionDecision(PermissionBehavior.ALLOW, "it only adds")
    model = OpenAIChatModel(OpenAICredential(api_key=key, base_url=url), "tiny", max_retries=0)
    agent = Agent(
        "calculator",
        "Be brief.",
        model,
        toolkit=Toolkit(tools=[FunctionTool(add, permission=allowed)]),
        react_config=ReActConfig(max_iters=CALLS),
        injection_config=InjectionConfig(inject_runtime_state=False),
    )
    for turn in turns:
        await agent.reply(UserMsg("user", turn))


async def smolagents(url: str, key: str) -> None:
    """One step of its agent and the final answer that it asks for then; the random model never gives one."""
    import smolagents as smol

    model = smol.OpenAIServerModel("tiny", api_base=url, api_key=key, client_kwargs={"max_retries": 0})
    agent = smol.ToolCallingAgent(tools=[smol.tool(add)], model=model, max_steps=1)
    agent.prompt_templates["system_prompt"] = "Be brief."
    agent.memory.system_prompt.system_prompt = "Be brief."
    await asyncio.to_thread(agent.run, TURNS[0])


AGENTS: dict[str, tuple[str, Agent]] = {
    "openai-agents": ("agents", openai_agents),
    "agentscope": ("agentscope", agentscope),
}


def played(roomy: Recorded, agent: Agent) -> Trajectory:
    trajectory: Trajectory = roomy.open()[0]
    asyncio.run(agent(roomy.address + Capture.path(trajectory.id), roomy.capture.key(trajectory.id)))
    return trajectory


@pytest.mark.parametrize("name", AGENTS)
def test_a_conversation_of_a_framework_is_one_exact_row(name: str, roomy: Recorded) -> None:
    package, agent = AGENTS[name]
    pytest.importorskip(package)
    trajectory = played(roomy, agent)
    (row,) = check_exact(roomy, trajectory)
    assert [m["role"] for m in row.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert trajectory.drift == {Drift.EXACT: len(TURNS)}
    assert [tool["function"]["name"] for tool in row.tools or ()] == ["add"]


def test_forced_tool_calls_of_smolagents_are_marked_as_constrained(roomy: Recorded) -> None:
    """It forces calls, so their logprobs are of what a grammar allows; the rest is as everywhere."""
    pytest.importorskip("smolagents")
    pytest.importorskip("lmformatenforcer")
    trajectory = played(roomy, smolagents)
    rows = roomy.rows(trajectory)
    assert len(list(trajectory.turns)) == 2
    free = [turn for turn in trajectory.turns if not turn.constrained]
    assert trained(rows) == sum(len(turn.sampled) for turn in free) < trajectory.sampled
    assert rows[0].metadata[CONSTRAINED] == 1
    assert [tool["function"]["name"] for tool in rows[0].tools or ()] == ["add", "final_answer"]


def open_to(roomy: Recorded) -> tuple[Trajectory, dict[str, Any]]:
    """A trajectory, and what the examples of docs/agents.md are given."""
    trajectory = roomy.open()[0]
    url, key = roomy.address + Capture.path(trajectory.id), roomy.capture.key(trajectory.id)
    return trajectory, {"replaced": {'"policy"': '"tiny"'}, "url": url, "key": key, "add": add}


def test_the_example_with_openai_agents_is_recorded(roomy: Recorded) -> None:
    pytest.importorskip("agents")
    trajectory, names = open_to(roomy)
    run_block("agents.md", "import agents", **names)
    assert list(trajectory.turns)


def test_the_example_with_agentscope_is_recorded(roomy: Recorded) -> None:
    pytest.importorskip("agentscope")
    trajectory, names = open_to(roomy)
    run_block("agents.md", "from agentscope", **names)
    assert list(trajectory.turns)


def test_the_example_with_smolagents_is_recorded(roomy: Recorded) -> None:
    pytest.importorskip("smolagents")
    pytest.importorskip("lmformatenforcer")
    trajectory, names = open_to(roomy)
    run_block("agents.md", "import smolagents", **names)
    assert list(trajectory.turns)
