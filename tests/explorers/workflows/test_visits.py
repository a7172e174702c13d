"""Who has no key of a trajectory can do nothing with it, and who has one is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from explorers.capture import bodies
from explorers.conversations.model_app import MAX_BODY, ModelApp
from explorers.workflows.openings import Openings
from explorers.workflows.visits import Visits
from tests.explorers.workflows.test_served import TOKEN


class Here:
    """A run whose clients are all guests."""

    def __init__(self, *, alike: bool = False) -> None:
        self.model = SimpleNamespace(held=0)
        openings = Openings(1.0) if alike else None
        self.visits = Visits(TOKEN, self._guest, idle_s=60.0, guests=10, openings=openings)
        transport = httpx.ASGITransport(app=cast(Any, self.visits))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://run")
        self.statuses: list[int] = []

    async def _guest(self) -> ModelApp:
        return ModelApp(cast(Any, SimpleNamespace(model=self.model)))

    async def open(self) -> dict[str, str]:
        answer = await self.http.post("/trajectories", headers={"authorization": f"Bearer {TOKEN}"})
        found: dict[str, str] = answer.json()
        return found

    async def send(self, message: Any) -> None:
        self.statuses += [message["status"]] if "status" in message else []

    async def ask(self, path: str, key: str, receive: Any, length: int = MAX_BODY) -> None:
        """One request, whose body is as `receive` gives it."""
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-length", str(length).encode())]
        await self.visits(
            {"type": "http", "method": "POST", "path": path, "headers": headers}, receive, self.send
        )


async def reads(*_: Any) -> Any:
    raise AssertionError("it was read")


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def short(*_: Any) -> Any:
    return {"type": "http.request", "body": b"[]", "more_body": False}


@contextmanager
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What `monotonic()` says to trajectories."""
    found = SimpleNamespace(now=time.monotonic())
    for module in ("openings", "visit", "visits"):
        monkeypatch.setattr(f"explorers.workflows.{module}.monotonic", lambda: found.now)
    yield found


@pytest.mark.parametrize("alike", [False, True])
def test_a_wrong_key_is_not_read_and_keeps_no_trajectory_open(
    monkeypatch: pytest.MonkeyPatch, *, alike: bool
) -> None:
    async def story() -> None:
        with clock(monkeypatch) as told:
            here = Here(alike=alike)
            name = (await here.open())["id"]
            told.now += 59
            for path in (f"/t/{name}/v1/completions", f"/trajectories/{name}/reward", "/trajectories"):
                await here.ask(path, "wrong", reads)
            assert here.statuses == [401] * 3
            told.now += 2
            if alike:
                await here.open()
            while (await here.http.get("/health")).json()["open"]:
                await asyncio.sleep(0.01)
            openings = here.visits._openings
            assert openings is None or name not in openings.arrivals

    asyncio.run(story())


def test_strangers_hear_that_they_have_no_key_where_all_trajectories_are_full() -> None:
    async def story() -> None:
        here = Here()
        one = await here.open()
        path = f"/t/{one['id']}/v1/models"
        here.model.held = 1 << 30
        await here.ask(path, one["key"], short, 2)  # what it holds is counted when a request of it ends
        await here.ask(path, one["key"], reads)
        await here.ask("/trajectories", TOKEN, reads)
        await here.ask(path, "wrong", reads)
        assert here.statuses == [404, 429, 429, 401]
        here.statuses.clear()
        end = await here.http.post(
            f"/trajectories/{one['id']}/end", headers={"authorization": f"Bearer {one['key']}"}
        )
        assert end.json() == {"id": one["id"], "open": False, "experience_id": None, "stored": False}
        while (await here.http.get("/health")).json()["open"]:
            await asyncio.sleep(0.01)
        assert (await here.open())["key"], "there is room again"

    asyncio.run(story())


@pytest.mark.parametrize("alike", [False, True])
def test_one_key_has_its_share_of_the_room_for_bodies(*, alike: bool) -> None:
    async def story() -> None:
        here = Here(alike=alike)
        one, two = await here.open(), await here.open()
        path, wrong = f"/t/{one['id']}/v1/models", 400 if alike else 404
        many = [asyncio.create_task(here.ask(path, one["key"], never)) for _ in range(4)]
        await asyncio.sleep(0)
        await here.ask(path, one["key"], reads)
        await here.ask(f"/t/{two['id']}/v1/models", two["key"], short, 2)
        assert here.statuses == [429, wrong], "another client is heard"
        for waiting in many:
            waiting.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        await here.ask(path, one["key"], short)
        assert here.statuses[2:] == [wrong], "there is room again"

    asyncio.run(story())


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("path", ["/t/{id}/v1/chat/completions", "/trajectories/{id}/end", "/trajectories"])
def test_a_body_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, path: str, *, alike: bool
) -> None:
    monkeypatch.setattr(bodies, "_BODY_S", 0.01)

    async def story() -> None:
        here = Here(alike=alike)
        one = await here.open()
        key = TOKEN if path == "/trajectories" else one["key"]
        await asyncio.wait_for(here.ask(path.format(id=one["id"]), key, never), 30)
        assert here.statuses == [408]

    asyncio.run(story())
