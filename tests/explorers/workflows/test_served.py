"""Trajectories of real clients as rollouts: exact rows, rewards from outside, guests, typed ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import openai
import pytest

from explorers.conversations.model_app import ModelApp
from explorers.limits import Limits
from explorers.meter import Meter
from explorers.workflows.make import workflow_stored
from explorers.workflows.rollouts import Rollouts
from explorers.workflows.served import ServedWorkflow
from explorers.workflows.visits import Visits
from rft_data.core.errors import EngineError, RecipeError
from rft_data.core.rows import Experience
from rft_data.core.workflow import RolloutContext
from tests.explorers.conversations.conftest import SayingEngine
from tests.explorers.workflows.test_worlds import CTX, NONE, TASK
from tests.ports import free_port
from tests.waiting import turns

TOKEN = "a token of enough characters"  # noqa: S105
ASK = [{"role": "user", "content": "two and two?"}]


async def played(rollouts: Rollouts, ctx: RolloutContext) -> list[Experience] | Exception:
    """Play a rollout, as an explorer does that stores it."""
    rows = await rollouts.play(TASK, ctx)
    if isinstance(rows, list):
        workflow_stored(rollouts.workflow, rows)
    return rows


class Run:
    """A run with some rollouts that wait for clients."""

    def __init__(self, tokenizer: Any, port: int, said: list[str], **args: Any) -> None:
        self.engine = SayingEngine(tokenizer, [f"{text}<|im_end|>" for text in said])
        self.workflow = ServedWorkflow(tokenizer, NONE, token=TOKEN, port=port, **args)
        self.rollouts = Rollouts(self.engine, self.workflow, Limits(), Meter())
        self.base = f"http://127.0.0.1:{port}"
        self.http = httpx.AsyncClient(base_url=self.base, headers={"authorization": f"Bearer {TOKEN}"})

    def wait(self, member: int, group: str = CTX.group_id) -> asyncio.Task[list[Experience] | Exception]:
        """A rollout that waits for a client."""
        return asyncio.create_task(played(self.rollouts, replace(CTX, member=member, group_id=group)))

    async def open(self) -> dict[str, Any]:
        answer = await self.http.post("/trajectories")
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def say(self, opened: dict[str, Any], *messages: Any) -> str:
        async with openai.AsyncOpenAI(
            base_url=opened["base_url"], api_key=opened["key"], max_retries=0
        ) as client:
            reply = await client.chat.completions.create(model="any", messages=list(messages))
        return reply.choices[0].message.content or ""

    async def end(self, opened: dict[str, Any], how: str = "end", body: Any = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {opened['key']}"}
        return await self.http.post(
            f"/trajectories/{opened['id']}/{how}", headers=headers, content=json.dumps(body) if body else b""
        )


@asynccontextmanager
async def running(tokenizer: Any, *said: str, **args: Any) -> AsyncIterator[Run]:
    run = Run(tokenizer, free_port(), list(said), **args)
    try:
        yield run
    finally:
        await run.http.aclose()
        await asyncio.to_thread(run.workflow.close)


async def reachable(run: Run, waiting: int = 1) -> None:
    """Wait until so many rollouts wait for clients."""
    while True:
        try:
            if (await run.http.get("/health")).json()["waiting"] == waiting:
                return
        except httpx.ConnectError:
            pass
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_a_clients_conversation_is_a_row_with_its_exact_tokens_and_reward(tokenizer: Any) -> None:
    async def story() -> None:
        async with running(tokenizer, "four", "sure") as run:
            waiting = run.wait(0)
            await reachable(run)
            opened = await run.open()
            first = await run.say(opened, *ASK)
            await run.say(
                opened, *ASK, {"role": "assistant", "content": first}, {"role": "user", "content": "Sure?"}
            )
            assert (await run.end(opened, "reward", 0.25)).json()["open"]
            ended = await run.end(opened, body={"reward": 0.5, "parts": {"thumb": 1}})
            assert ended.status_code == 200
            rows = await waiting
            assert isinstance(rows, list)
            (row,) = rows
            assert (row.reward, row.reward_parts) == (0.5, {"world": 0.5, "world.thumb": 1.0})
            assert row.messages[0]["content"] == "two and two?", "what was asked, not the task's placeholder"
            assert list(row.token_ids or ()) == run.engine.seen[1] + run.engine.said[1]
            assert sum(row.action_mask or ()) == len(run.engine.said[0]) + len(run.engine.said[1])
            assert row.metadata["trajectory"] == opened["id"]
            said = {"id": opened["id"], "open": False, "experience_id": row.experience_id, "stored": True}
            assert ended.json() == said, "feedback about it can come later"
            late = await run.end(opened, "reward", 1.0)
            assert (late.status_code, "--trajectory ID" in late.text) == (409, True), "it is over"
            assert run.workflow.metrics()["served"] == 1.0

    asyncio.run(story())


def test_an_end_is_answered_when_its_row_is_stored_or_waits_for_the_others_of_its_group(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorers.workflows.visit._STORED_S", 1e9)

    async def story() -> None:
        async with running(tokenizer, "four", "five") as run:
            playing = [
                asyncio.create_task(run.rollouts.play(TASK, replace(CTX, member=member))) for member in (0, 1)
            ]
            await reachable(run, 2)
            one, two = await run.open(), await run.open()
            for opened in (one, two):
                await run.say(opened, *ASK)
            first = (await run.end(one)).json()
            ending = asyncio.create_task(run.end(two))
            rows = [row for found in [await rollout for rollout in playing] for row in cast(Any, found)]
            assert (first["experience_id"], first["stored"]) == (rows[0].experience_id, False)
            await turns()
            assert not ending.done(), "a kill would still lose it"
            workflow_stored(run.workflow, rows)
            second = (await ending).json()
            assert (second["experience_id"], second["stored"]) == (rows[1].experience_id, True)

    asyncio.run(story())


@pytest.mark.slow
def test_clients_that_no_rollout_waits_for_are_served_and_not_recorded(tokenizer: Any) -> None:
    async def story() -> None:
        async with running(tokenizer, "guest", "recorded", guests=1) as run:
            waiting = run.wait(0)
            await reachable(run)
            recorded, guest = await run.open(), await run.open()
            refused = await run.http.post("/trajectories")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert await run.say(guest, *ASK) == "guest"
            assert not waiting.done()
            await run.say(recorded, *ASK)
            assert (await run.end(guest, body=1.0)).json()["experience_id"] is None, "it has no row"
            await run.end(recorded, body=1.0)
            rows = await waiting
            assert isinstance(rows, list)
            assert [row.completion_text for row in rows] == ["recorded"]
            counts = run.workflow.metrics()
            assert (counts["served"], counts["served_guests"], counts["served_refused"]) == (2.0, 1.0, 1.0)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize(("alike", "asked"), [(1.0, "two and two?"), (0.4, "what is two and two?")])
def test_clients_that_ask_alike_are_one_group(tokenizer: Any, alike: float, asked: str) -> None:
    async def story() -> None:
        async with running(tokenizer, *"abcde", alike=alike, guests=1) as run:
            waiting = {(n, g): run.wait(n, g) for g in ("g-0", "g-1") for n in range(2)}
            await reachable(run, 4)
            opened = [await run.open() for _ in range(5)]
            stranger = {**opened[0], "key": opened[1]["key"]}
            assert (await run.end(stranger, "reward", 1.0)).status_code == 401
            assert (await run.end(opened[0], "reward", 1.0)).status_code == 409, "nothing was sampled yet"
            other = {"role": "user", "content": "name a colour"}
            said = {
                n: await run.say(opened[n], {"role": "user", "content": text})
                for n, text in ((0, "two and two?"), (1, "name a colour"), (2, asked))
            }
            said[3] = await run.say(opened[3], {"role": "user", "content": "sing"})
            said[4] = await run.say(opened[4], other)
            assert (await run.end(opened[3], body=1.0)).status_code == 200
            for n in (0, 1, 2, 4):
                assert (await run.end(opened[n], body=1.0)).status_code == 200
            rows = {place: await one for place, one in waiting.items()}
            groups: dict[str, set[str]] = {"g-0": set(), "g-1": set()}
            for (_, group), found in rows.items():
                assert isinstance(found, list), found
                groups[group].add(found[0].completion_text)
            assert groups == {"g-0": {said[0], said[2]}, "g-1": {said[1], said[4]}}
            assert run.workflow.metrics()["served_guests"] == 1.0, "what no group is about is no row"

    asyncio.run(story())


def test_a_fault_of_the_engine_is_the_rollouts_whatever_its_client_makes_of_it(tokenizer: Any) -> None:
    async def story() -> None:
        async with running(tokenizer, "four") as run:
            run.engine.generate = broken
            waiting = run.wait(0)
            await reachable(run)
            opened = await run.open()
            with pytest.raises(openai.InternalServerError, match="it broke"):
                await run.say(opened, *ASK)
            await run.end(opened, "abandon")
            with pytest.raises(EngineError, match="it broke"):  # so that the explorer learns of it
                await waiting

    async def broken(*_: object) -> Any:
        raise EngineError("it broke")

    asyncio.run(story())


@pytest.mark.slow
def test_a_key_opens_its_own_trajectory_and_the_token_opens_none(tokenizer: Any) -> None:
    async def story() -> None:
        async with running(tokenizer, "a", "b") as run:
            waiting = [run.wait(0), run.wait(1)]
            await reachable(run, 2)
            one, two = await run.open(), await run.open()
            assert one["key"] != two["key"]
            for key in (two["key"], TOKEN):
                mixed = {**one, "key": key}
                with pytest.raises(openai.AuthenticationError):
                    await run.say(mixed, *ASK)
                assert (await run.end(mixed)).status_code == 401
            stranger = await run.http.post("/trajectories", headers={"authorization": "Bearer wrong"})
            assert stranger.status_code == 401
            for opened in (one, two):
                await run.say(opened, *ASK)
                await run.end(opened, body=0.0)
            first, second = [await one for one in waiting]
            assert isinstance(first, list)
            assert isinstance(second, list)
            assert [rows[0].completion_text for rows in (first, second)] == ["a", "b"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("how", "why"), [("abandon", "gave the trajectory up"), ("end", "nothing was sampled")]
)
def test_what_nothing_can_be_learned_from_is_no_row(tokenizer: Any, how: str, why: str) -> None:
    async def story() -> None:
        async with running(tokenizer) as run:
            waiting = run.wait(0)
            await reachable(run)
            ended = (await run.end(await run.open(), how)).json()
            outcome = await waiting
            assert isinstance(outcome, Exception)
            assert why in str(outcome)
            assert ended.get("experience_id") is None

    asyncio.run(story())


def test_a_trajectory_left_alone_is_over_and_its_reward_stays_open(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with running(tokenizer, "four", idle_s=3600) as run:
            waiting = run.wait(0)
            await reachable(run)
            await run.say(await run.open(), *ASK)
            now = time.monotonic()
            monkeypatch.setattr("explorers.workflows.visit.monotonic", lambda: now + 3601)
            rows = await waiting
            assert isinstance(rows, list)
            assert (rows[-1].reward, rows[-1].unscored_reason) == (None, None), "feedback may still come"
            assert rows[-1].metadata["end"] == "deadline"

    asyncio.run(story())


def test_what_a_client_says_first_of_a_trajectorys_end_stays() -> None:
    async def story() -> None:
        visits = Visits(TOKEN, lambda: None, idle_s=60.0, guests=0)
        transport = httpx.ASGITransport(app=visits)  # type: ignore[arg-type]
        async with (
            visits.waiting(ModelApp(cast(Any, SimpleNamespace(model=SimpleNamespace(held=0))))) as visit,
            httpx.AsyncClient(transport=transport, base_url="http://run") as http,
        ):
            owner = {"authorization": f"Bearer {TOKEN}"}
            asked = await http.post("/trajectories", headers=owner, json={"task": {"answer": "4"}})
            assert asked.status_code == 400, "a task that nobody reads, and it takes no rollout"
            opened = (await http.post("/trajectories", headers=owner, json={})).json()
            visit.settle(stored=False)
            place, key = f"/trajectories/{opened['id']}", {"authorization": f"Bearer {opened['key']}"}
            assert (await http.post(f"{place}/end", headers=key, json={"reward": 1.0})).status_code == 200
            for how in ("end", "abandon", "reward"):
                late = await http.post(f"{place}/{how}", headers=key, json={"reward": 0.0})
                assert late.status_code == 409
            assert (visit.access.reward, visit.abandoned) == (1.0, False)

    asyncio.run(story())


@pytest.mark.slow
def test_what_one_client_may_have_at_a_time_and_in_all_is_bounded(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorers.conversations.model_app.MOST_REQUESTS", 1)
    monkeypatch.setattr("explorers.workflows.served._BUDGET", 10)

    async def story() -> None:
        async with running(tokenizer, *"abcdefgh") as run:
            waiting = run.wait(0)
            await reachable(run)
            opened, generate = await run.open(), run.engine.generate
            reached, go_on = asyncio.Event(), asyncio.Event()

            async def halted(*asked: Any) -> Any:
                reached.set()
                await go_on.wait()
                return await generate(*asked)

            run.engine.generate = halted  # type: ignore[method-assign]
            saying = asyncio.create_task(run.say(opened, *ASK))
            await reached.wait()
            with pytest.raises(openai.RateLimitError, match="1 requests of this program") as caught:
                await run.say(opened, *ASK)
            assert caught.value.response.headers["retry-after"] == "1"
            go_on.set()
            assert await saying == "a"
            for _ in range(4):  # of two tokens each
                await run.say(opened, *ASK)
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                await run.say(opened, *ASK)
            await run.end(opened, body=1.0)
            rows = await waiting
            assert isinstance(rows, list)
            assert sum(sum(row.action_mask or ()) for row in rows) == 10
            assert rows[-1].metadata["end"] == "budget"

    asyncio.run(story())


@pytest.mark.slow
def test_what_clients_send_is_bounded_too(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt is kept as long as its trajectory: of one, and of all together."""
    monkeypatch.setattr("explorers.workflows.served._ROOM", 400)

    async def story() -> None:
        async with running(tokenizer, *"abcdefgh", budget=100) as run:
            waiting = run.wait(0)
            await reachable(run)
            opened, guest = await run.open(), await run.open()
            many = {"role": "user", "content": "many words " * 100}
            assert await run.say(opened, *ASK) == "a"
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                await run.say(opened, many)  # another branch of as many tokens
            monkeypatch.setattr("explorers.workflows.visits.MOST_HELD", 1)
            for asking in (run.say(opened, *ASK), run.say(guest, *ASK)):
                with pytest.raises(openai.RateLimitError, match="end some") as caught:
                    await asking
                assert caught.value.response.headers["retry-after"] == "5"
            assert (await run.http.post("/trajectories")).status_code == 429
            assert (await run.end(opened, body=1.0)).status_code == 200
            rows = await waiting
            assert isinstance(rows, list)
            assert [row.completion_text for row in rows] == ["a"]
            assert rows[-1].metadata["end"] == "budget"
            assert await run.say(guest, *ASK) == "b"

    asyncio.run(story())


@pytest.mark.slow
def test_an_end_gives_up_what_is_being_sampled_and_its_client_hears_so(tokenizer: Any) -> None:
    async def story() -> None:
        async with running(tokenizer, "four", "five") as run:
            waiting = run.wait(0)
            await reachable(run)
            opened = await run.open()
            await run.say(opened, *ASK)
            halting = asyncio.Event()
            generate = run.engine.generate

            async def halted(prompt_ids: Any, sampling: Any) -> Any:
                halting.set()
                await asyncio.Event().wait()
                return await generate(prompt_ids, sampling)

            run.engine.generate = halted  # type: ignore[method-assign]
            saying = asyncio.create_task(run.say(opened, {"role": "user", "content": "another"}))
            await halting.wait()
            assert (await run.end(opened, body=1.0)).status_code == 200
            with pytest.raises(openai.BadRequestError, match="the rollout has ended"):
                await saying
            rows = await waiting
            assert isinstance(rows, list)
            assert [row.completion_text for row in rows] == ["four"]

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [b"{", b'{"reward": "good"}', b"NaN", b'{"reward": 1, "parts": {"a": null}}']
)
def test_a_reward_that_is_none_is_refused_and_the_trajectory_stays(tokenizer: Any, body: bytes) -> None:
    async def story() -> None:
        async with running(tokenizer, "four") as run:
            waiting = run.wait(0)
            await reachable(run)
            opened = await run.open()
            await run.say(opened, *ASK)
            headers = {"authorization": f"Bearer {opened['key']}"}
            assert (
                await run.http.post(f"/trajectories/{opened['id']}/end", headers=headers, content=body)
            ).status_code == 400
            assert not waiting.done()
            await run.end(opened, body=1.0)
            assert isinstance(await waiting, list)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"token": "short"}, "token is shorter"),
        ({"idle_s": 0}, "idle_s is 0"),
        ({"guests": -1}, "guests is -1"),
        ({"alike": 0}, "alike is 0"),
    ],
)
def test_wrong_arguments_are_refused(tokenizer: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ServedWorkflow(tokenizer, NONE, **{"token": TOKEN, **args})
