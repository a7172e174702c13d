"""Programs as workflows over vLLM's own server: unchanged clients on every route, exact rows."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from transformers import AutoTokenizer

from explorers.engines.make import can_be_served, make_engine
from explorers.ledger import Cost
from explorers.limits import Limits
from explorers.meter import Meter, metered
from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow, needs_texts
from explorers.workflows.rollouts import Rollouts
from rft_data.core.engine import Sampling
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import Experience, Task
from rft_data.core.words import RowSource
from rft_data.core.workflow import RolloutContext
from tests.explorers.capture.conftest import ROOM, SAMPLING, TOKEN, Served
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HERE = __name__
PROGRAM = Path(__file__).parent / "programs" / "every_route.py"
ASK = [{"role": "user", "content": "2 + 2 ="}]
TASK = Task("sums", tuple(ASK), answer="4")
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SERVER = {"use": "vllm", "tool_parser": "hermes"}
WHOLE = replace(SAMPLING, min_tokens=SAMPLING.max_tokens)
"""A random model may end its turn in the first steps, and not with this."""
Play = Callable[..., tuple[list[Experience] | Exception, dict[str, float]]]


@pytest.fixture(scope="module")
def play(served: Served) -> Play:
    """Plays one rollout of a program in the engine's own event loop; the outcome, and what was metered."""
    tokenizer = AutoTokenizer.from_pretrained(served.model)

    def played(sampling: Sampling = SAMPLING, **args: Any) -> tuple[Any, dict[str, float]]:
        meter = Meter()
        settings = {"use": "program", "args": {"server": SERVER, **args}}
        workflow = make_workflow(settings, tokenizer, Rewards({}, {}))
        assert needs_texts(workflow)
        rollouts = Rollouts(metered(served.engine, meter), workflow, Limits(retries=0), meter)
        ctx = RolloutContext("run", "g", 0, 0, "e0", RowSource.ROLLOUT, sampling)
        cost = Cost()

        async def at_its_cost() -> Any:
            cost.begin()
            return await rollouts.play(TASK, ctx)

        outcome = served.loop.run(at_its_cost())
        return outcome, {**meter.take(), "of_the_rollout": cost.tokens}

    return played


def rows_of(outcome: list[Experience] | Exception) -> list[Experience]:
    assert isinstance(outcome, list), outcome
    return outcome


def without_special(tokenizer: Any, text: str) -> str:
    """What a client is told of a text: a random model says special tokens too."""
    for one in tokenizer.all_special_tokens:
        text = text.replace(one, "")
    return text.rstrip("\ufffd")


def sampled(rows: list[Experience]) -> int:
    return sum(sum(row.action_mask or ()) for row in rows)


def test_an_unchanged_program_reaches_every_route_and_streams(play: Play, served: Served) -> None:
    outcome, counts = play(WHOLE, command=[sys.executable, str(PROGRAM)])
    rows = rows_of(outcome)
    told = json.loads(rows[-1].metadata["environment_state"]["output"])
    assert told["chunks"] > 4, "a stream comes in pieces"
    assert told["streamed"] == [0, 1], "both choices"
    tokenizer = AutoTokenizer.from_pretrained(served.model)
    said = [without_special(tokenizer, row.completion_text) for row in rows[:2]]
    assert [text.rstrip("\ufffd") for text in told["texts"]] == said
    assert [row.tools for row in rows[:3]] == [[ADD], [ADD], None]
    assert len(rows) == 2 + 1 + 1 + 1
    assert rows[-1].reward == 0.25
    assert counts["tokens"] == counts["of_the_rollout"] == sampled(rows) > 0
    assert all(row.group_id == "g" and row.version_max == 0 for row in rows)


async def goes_on(task: Any, client: Any, **asked: Any) -> float:
    messages = list(task.messages)
    while True:
        said = await client.chat.completions.create(model="policy", messages=messages, **asked)
        messages += [{"role": "assistant", "content": said.choices[0].message.content}, *ASK]


async def stops(task: Any, client: Any) -> float:
    said = await client.chat.completions.create(model="policy", messages=list(task.messages))
    return float(said.usage.completion_tokens)


async def asks_wrongly(task: Any, client: Any) -> float:
    await client.chat.completions.create(model="policy", messages=list(task.messages), top_p=0.5)
    return 1.0


async def leaves_some_behind(task: Any, client: Any) -> float:
    asked = client.chat.completions.create(model="policy", messages=list(task.messages), max_tokens=200)
    asking = asyncio.ensure_future(asked)
    await client.chat.completions.create(model="policy", messages=list(task.messages), max_tokens=2)
    LEFT.append(asking)
    return 1.0


LEFT: list[asyncio.Future[Any]] = []


async def fills_its_context(task: Any, client: Any) -> float:
    """Prompts that are longer by a token each: one of them leaves no room for any answer."""

    async def asked(tildes: int) -> Any:
        said = [{"role": "user", "content": "~" * tildes}]
        return await client.chat.completions.create(model="policy", messages=said)

    used = (await asked(1)).usage.prompt_tokens
    for tildes in range(ROOM - used - 1, ROOM):
        await asked(tildes)
    return 1.0


@pytest.mark.parametrize(
    ("agent", "args", "end"),
    [
        ("goes_on", {"budget": 30}, "budget"),
        ("goes_on", {}, "context"),
        ("fills_its_context", {}, "context"),
    ],
)
def test_a_program_that_meets_a_limit_ends_there(
    play: Play, agent: str, args: dict[str, Any], end: str
) -> None:
    outcome, counts = play(agent=f"{HERE}:{agent}", **args)
    assert rows_of(outcome)[-1].metadata["end"] == end
    if args:
        assert counts["tokens"] == args["budget"], "the last turn has what is left"


def test_the_recipes_sampling_holds(play: Play, served: Served) -> None:
    short = Sampling(5, temperature=0.0, min_tokens=5)
    outcome, _ = play(short, agent=f"{HERE}:stops")
    (row,) = rows_of(outcome)
    assert (row.reward, row.sampling) == (5.0, short.stored())
    piece = AutoTokenizer.from_pretrained(served.model).decode(list(row.token_ids or ())[-3:-2])
    cut, _ = play(Sampling(5, temperature=0.0, stop=(piece,)), agent=f"{HERE}:stops")
    assert piece.strip() == "" or sampled(rows_of(cut)) <= 3, "the recipe's stop ends it"


def test_a_request_that_cannot_be_honoured_is_named(play: Play) -> None:
    outcome, _ = play(agent=f"{HERE}:asks_wrongly")
    assert "'top_p' is 0.5" in str(outcome)
    outcome, _ = play(command=[sys.executable, str(PROGRAM), "wrong"])
    assert isinstance(outcome, RowError), outcome
    assert "after this was refused: 'top_p' is 0.5" in str(outcome)


def test_what_is_sampled_at_the_end_is_given_up(play: Play, served: Served) -> None:
    never_ends = replace(WHOLE, max_tokens=200, min_tokens=200)
    outcome, counts = play(never_ends, agent=f"{HERE}:leaves_some_behind")
    rows = rows_of(outcome)
    assert sampled(rows) == 2
    assert rows[-1].metadata["aborted_turns"] == 1
    assert counts["tokens"] >= 2
    assert served.engine.in_flight() == 0
    with pytest.raises(Exception, match="the rollout has ended"):
        served.loop.run(_result(LEFT.pop()))


async def _result(asked: asyncio.Future[Any]) -> Any:
    return await asked


def test_a_user_of_a_run_has_real_streams(served: Served) -> None:
    tokenizer = AutoTokenizer.from_pretrained(served.model)
    place, meter = f"http://127.0.0.1:{(port := free_port())}", Meter()
    settings = {"use": "served", "args": {"token": TOKEN, "port": port, "server": SERVER}}
    workflow = make_workflow(settings, tokenizer, Rewards({}, {}))
    rollouts = Rollouts(metered(served.engine, meter), workflow, Limits(retries=0), meter)
    ctx = RolloutContext("run", "g", 0, 0, "e0", RowSource.ROLLOUT, WHOLE)

    async def story() -> tuple[int, Any]:
        waiting = asyncio.create_task(rollouts.play(TASK, ctx))
        async with httpx.AsyncClient(base_url=place, headers={"authorization": f"Bearer {TOKEN}"}) as http:
            while not await _waits(http):
                await asyncio.sleep(0.01)
            opened = (await http.post("/trajectories")).json()
            async with openai.AsyncOpenAI(base_url=opened["base_url"], api_key=opened["key"]) as client:
                stream = await client.chat.completions.create(model="policy", messages=ASK, stream=True)  # type: ignore[call-overload]
                chunks = [chunk async for chunk in stream]
            key = {"authorization": f"Bearer {opened['key']}"}
            end = http.post(f"/trajectories/{opened['id']}/end", headers=key, content="0.5")
            ending = asyncio.create_task(end)  # it is answered when the row is stored
            outcome = await waiting
            workflow.stored(rows_of(outcome))  # type: ignore[attr-defined]
            assert (await ending).status_code == 200
        return len(chunks), outcome

    try:
        chunks, outcome = served.loop.run(story())
    finally:
        workflow.close()  # type: ignore[attr-defined]
    (row,) = rows_of(outcome)
    assert chunks > 4
    assert (row.reward, row.metadata["end"], sampled([row])) == (0.5, "finished", meter.take()["tokens"])


async def _waits(http: httpx.AsyncClient) -> bool:
    try:
        return bool((await http.get("/health")).json()["waiting"])
    except httpx.ConnectError:
        return False


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("vlm", "server is 'vlm'; wanted one of: small, vllm"),
        ({"use": "small", "tool_parser": "hermes"}, "server has 'tool_parser'; with"),
        ({"use": "vllm", "parser": "hermes"}, "server has 'parser'; with"),
        ({"use": "vllm", "tool_parser": 3}, "server.tool_parser is 3"),
    ],
)
def test_a_server_that_there_is_not_is_refused(play: Play, server: Any, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        play(agent=f"{HERE}:stops", server=server)


def test_a_parser_that_vllm_does_not_have_ends_the_run(play: Play) -> None:
    with pytest.raises(RecipeError, match="'nobodys'"):
        play(agent=f"{HERE}:stops", server={"use": "vllm", "tool_parser": "nobodys"})


def test_an_engine_that_has_no_server_is_refused_before_it_starts(tmp_path: Path, served: Served) -> None:
    with pytest.raises(RecipeError, match=r"explorer.engine.use is 'transformers', and it needs 'vllm'"):
        make_engine({"use": "transformers"}, str(served.model), texts=True)
    spread = {"use": "vllm", "options": {"tensor_parallel_size": 2}}
    with pytest.raises(RecipeError, match="spread the engine"):
        can_be_served(spread, served.model)
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    with pytest.raises(RecipeError, match="looks at images"):
        can_be_served({"use": "vllm"}, tmp_path)
    can_be_served({"use": "vllm"}, served.model)
