"""One address before two explorers: arms by the trajectory's id, calls stay there, an arm may be away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from explorers.capture.listening import listening
from explorers.conversations.model_app import MAX_BODY
from explorers.limits import Limits
from explorers.meter import Meter
from explorers.workflows.front import Front
from explorers.workflows.rollouts import Rollouts
from explorers.workflows.served_arm import ServedArm
from explorers.workflows.visit_keys import VisitKeys
from rft_data.core.arms import Arm, drawn_arm
from rft_data.core.rows import Experience
from tests.explorers.conversations.conftest import SayingEngine, trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.workflows.test_served import ASK, TOKEN, played
from tests.explorers.workflows.test_worlds import CTX, NONE

SEED, SHARE = 3, 0.4


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = trained_tokenizer()
    made.chat_template = QWEN25
    return made


class Explorer:
    """An explorer of one arm, which says the arm's name."""

    def __init__(self, tokenizer: Any, arm: Arm, folder: Path, **args: Any) -> None:
        self.engine = SayingEngine(tokenizer, [f"{arm}<|im_end|>"] * 200)
        self.workflow = ServedArm(
            tokenizer, NONE, token=TOKEN, arm=str(arm), socket=str(folder / arm), guests=100, **args
        )
        self.rollouts = Rollouts(self.engine, self.workflow, Limits(), Meter())

    def wait(self, member: int) -> asyncio.Task[list[Experience] | Exception]:
        """A rollout that waits for a client."""
        return asyncio.create_task(played(self.rollouts, replace(CTX, member=member)))


class Test:
    """A front, its explorers and a client."""

    __test__ = False

    def __init__(self, tokenizer: Any, folder: Path, base: str, **args: Any) -> None:
        self.explorers = {arm: Explorer(tokenizer, arm, folder, **args) for arm in Arm}
        self.http = httpx.AsyncClient(base_url=base, headers={"authorization": f"Bearer {TOKEN}"})

    async def reachable(self, waiting: int) -> dict[str, Any]:
        while True:
            answer = await self.http.get("/health")
            found: dict[str, Any] = answer.json()
            if found["waiting"] == waiting and answer.is_success:
                return found
            await asyncio.sleep(0.01)

    async def open(self, **headers: str) -> dict[str, Any]:
        answer = await self.http.post("/trajectories", headers=headers)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def open_in(self, arm: Arm) -> dict[str, Any]:
        while drawn_arm(SEED, (opened := await self.open())["id"], SHARE) is not arm:
            pass
        return opened

    async def say(self, opened: dict[str, Any], *, stream: bool = False) -> str:
        async with openai.AsyncOpenAI(
            base_url=opened["base_url"], api_key=opened["key"], max_retries=0
        ) as client:
            asked: Any = {"model": "any", "messages": ASK}
            if stream:
                parts = await client.chat.completions.create(**asked, stream=True)
                return "".join([part.choices[0].delta.content or "" async for part in parts if part.choices])
            reply = await client.chat.completions.create(**asked)
        return reply.choices[0].message.content or ""

    async def end(self, opened: dict[str, Any], how: str = "end") -> httpx.Response:
        headers = {"authorization": f"Bearer {opened['key']}"}
        return await self.http.post(f"/trajectories/{opened['id']}/{how}", headers=headers, json=1.0)


@asynccontextmanager
async def fronted(tokenizer: Any, folder: Path, **args: Any) -> AsyncIterator[Test]:
    front = Front({arm: [str(folder / arm)] for arm in Arm}, token=TOKEN, seed=SEED, share=SHARE)
    async with listening(front) as base:
        test = Test(tokenizer, folder, base, **args)
        try:
            yield test
        finally:
            await test.http.aclose()
            for explorer in test.explorers.values():
                await asyncio.to_thread(explorer.workflow.close)
            await front.close()


@pytest.mark.slow
@pytest.mark.parametrize("alike", [None, 1.0])
def test_a_trajectory_is_served_by_the_arm_of_its_id_to_its_end(
    tokenizer: Any, tmp_path: Path, alike: float | None
) -> None:
    async def story() -> None:
        async with fronted(tokenizer, tmp_path, alike=alike) as test:
            assert (await test.http.get("/health")).status_code == 503, "no explorer has answered"
            waiting = [one.wait(n) for one in test.explorers.values() for n in range(2)]
            found = await test.reachable(waiting=4)
            assert found["arms"] == {"old": {"waiting": 2, "open": 2}, "new": {"waiting": 2, "open": 2}}
            served: set[str] = set()
            while not all(one.done() for one in waiting):
                opened = await test.open()
                arm = drawn_arm(SEED, opened["id"], SHARE)
                assert await test.say(opened) == arm
                assert await test.say(opened, stream=True) == arm
                assert (await test.end(opened, "reward")).status_code == 200
                ended = (await test.end(opened)).json()
                assert ended.items() >= {"id": opened["id"], "open": False}.items()
                served.add(arm)
                await asyncio.sleep(0.01)
            assert served == set(Arm)
            for place, one in enumerate(waiting):
                rows = await one
                assert isinstance(rows, list), rows
                assert {row.metadata["arm"] for row in rows} == {list(Arm)[place // 2]}
                assert rows[-1].reward == 1.0

    asyncio.run(story())


@pytest.mark.slow
def test_while_an_explorer_is_away_its_arm_is_refused_and_the_other_goes_on(
    tokenizer: Any, tmp_path: Path
) -> None:
    async def story() -> None:
        async with fronted(tokenizer, tmp_path) as test:
            waiting = [one.wait(0) for one in test.explorers.values()]
            await test.reachable(waiting=2)
            lost, kept = await test.open_in(Arm.OLD), await test.open_in(Arm.NEW)
            await asyncio.to_thread(test.explorers[Arm.OLD].workflow.close)
            with pytest.raises(openai.InternalServerError, match="the trajectory with it") as told:
                await test.say(lost)
            assert told.value.status_code == 503
            assert (await test.end(lost)).status_code == 503
            assert await test.say(kept) == Arm.NEW
            seen = set()
            while seen != {201, 429}:
                answer = await test.http.post("/trajectories")
                seen.add(answer.status_code)
                if answer.status_code == 429:
                    assert answer.headers["retry-after"] == "1"
                else:
                    assert drawn_arm(SEED, answer.json()["id"], SHARE) is Arm.NEW, "no arm takes the other's"
            assert (await test.http.get("/health")).status_code == 200
            waiting.append(test.explorers[Arm.OLD].wait(1))  # it has come back, at the same place
            while (await test.http.get("/health")).json()["arms"]["old"]["waiting"] == 0:
                await asyncio.sleep(0.01)
            assert await test.say(await test.open_in(Arm.OLD)) == Arm.OLD
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(story())


@pytest.mark.slow
def test_a_client_names_no_trajectory_and_needs_the_token(tokenizer: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with fronted(tokenizer, tmp_path) as test:
            waiting = [one.wait(0) for one in test.explorers.values()]
            await test.reachable(waiting=2)
            opened = await test.open(**{"X-Rft-Trajectory": "mine"})
            assert opened["id"] != "mine"
            assert opened["base_url"].startswith(f"{str(test.http.base_url).rstrip('/')}/t/{opened['id']}/")
            secure = await test.open(**{"X-Forwarded-Proto": "https"})  # by a proxy on this machine
            assert secure["base_url"].startswith("https://")
            long = await test.http.post("/trajectories", content=b" " * (1 << 17))
            assert long.status_code == 413, "nobody needs so long a body to open a trajectory"
            stranger = await test.http.post("/trajectories", headers={"authorization": "Bearer wrong"})
            assert stranger.status_code == 401
            assert (await test.http.get("/trajectories")).status_code == 404
            assert (await test.http.post("/t/nobody/v1/chat/completions", json={})).status_code == 401
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/trajectories", "/trajectories/one/end", "/t/one/v1/completions"])
def test_nothing_is_read_of_who_has_no_key_and_not_too_much_of_who_has_one(tmp_path: Path, path: str) -> None:
    front = Front({arm: [str(tmp_path / arm)] for arm in Arm}, token=TOKEN, seed=SEED, share=SHARE)
    sent: list[Any] = []
    key = TOKEN if path == "/trajectories" else VisitKeys(TOKEN).key("one")
    announced = [(b"content-length", str(MAX_BODY).encode())]

    async def reads(*_: Any) -> Any:
        raise AssertionError("it was read")

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    def scope(given: str) -> Any:
        headers = [(b"authorization", f"Bearer {given}".encode()), *announced]
        return {"type": "http", "method": "POST", "path": path, "headers": headers, "scheme": "http"}

    async def story() -> None:
        for other in ("", "wrong", TOKEN if key != TOKEN else VisitKeys(TOKEN).key("one")):
            await front(scope(other), reads, send)
            assert sent[-2]["status"] == 401
        many = [asyncio.create_task(front(scope(key), never, send)) for _ in range(256)]
        await asyncio.sleep(0)
        await front(scope(key), reads, send)
        assert sent[-2]["status"] == 429
        for one in many:
            one.cancel()
        await asyncio.gather(*many, return_exceptions=True)

    asyncio.run(story())
