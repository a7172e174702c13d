"""Ends, rewards and abandonments of trajectories that cross each other; no engine is needed."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from explorers.capture.capture import Capture
from explorers.capture.control import Ending
from explorers.capture.journal import Journal
from explorers.capture.service import Service
from explorers.capture.store import Given, TrajectoryStore
from explorers.conversations.template import ChatTemplate
from rft_data.buffer import Buffer
from rft_data.core.engine import Sampling
from rft_data.core.errors import DiskFullError, RowError
from rft_data.core.rows import Task
from rft_data.core.words import RolloutEnd
from rft_data.exchange.feedback import feedback_about
from tests.explorers.capture.conftest import Talk
from tests.explorers.conversations.families import FAMILIES

ASK = [{"role": "user", "content": "2 + 2?"}]
GOOD = Given(1.0, {})


class Halting:
    """A buffer whose appends wait, or fail, as a test says."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.go_on, self.appending = threading.Event(), threading.Event()
        self.go_on.set()
        self.fails = False

    def append(self, rows: Sequence[Any]) -> Any:
        self.appending.set()
        self.go_on.wait(30)
        if self.fails:
            raise DiskFullError("the disk is full")
        return self._buffer.append(rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)


class Place:
    """A service over a buffer, without its routes and its engine."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = FAMILIES["qwen2.5"]
        self.buffer = Buffer(str(folder / "buffer"))
        self.halting = Halting(self.buffer)
        self.store = TrajectoryStore(self.halting, Journal(folder / "open.jsonl"), "served")
        capture = Capture(ChatTemplate(tokenizer), Sampling(64))
        self.service = Service(capture, self.store, cast(Any, None), deadline_s=3600.0)

    async def said(self, text: str = "4", task: Task | None = None) -> str:
        """A trajectory with one turn."""
        trajectory = await self.service.open(task)
        Talk(trajectory).say([*ASK, {"role": "user", "content": text}], text)
        return trajectory.id

    def rewards(self, stored: Any) -> list[float]:
        found = feedback_about(self.buffer, "reward", list(stored["experience_ids"]))
        return [row["value"] for row in found.to_pylist()]

    async def appending(self) -> None:
        assert await asyncio.to_thread(self.halting.appending.wait, 30)


@pytest.fixture
def place(tmp_path: Path, spoken: Any) -> Iterator[Place]:
    made = Place(tmp_path, spoken)
    yield made
    made.store.close()
    made.buffer.close()


@pytest.mark.slow
def test_an_abandonment_that_comes_after_an_end_changes_nothing(place: Place) -> None:
    async def story() -> None:
        name = await place.said()
        place.halting.go_on.clear()
        ending = asyncio.create_task(place.service.end(name, GOOD))
        await place.appending()
        abandoning = asyncio.create_task(place.service.abandon(name, "late"))
        await asyncio.sleep(0)
        place.halting.go_on.set()
        stored, answer = await ending, await abandoning
        assert stored is not None
        assert answer is not None
        assert answer["rows"] == stored["rows"] == 1
        assert len(place.buffer.read("groups")) == 0, "it is stored, so it was not given up"

    asyncio.run(story())


@pytest.mark.slow
def test_an_end_whose_request_is_cancelled_is_whole_before_the_server_stops(place: Place) -> None:
    async def story() -> None:
        name = await place.said()
        place.halting.go_on.clear()
        ending = asyncio.create_task(place.service.end(name, GOOD))
        await place.appending()
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        stopping = asyncio.create_task(place.service.stop())
        await asyncio.sleep(0)
        place.halting.go_on.set()
        await stopping
        assert len(place.buffer.read("groups")) == 0
        assert place.buffer.read("experiences", ["reward"]).to_pylist() == [{"reward": 1.0}]

    asyncio.run(story())


@pytest.mark.slow
def test_a_reward_that_comes_with_a_second_end_is_not_lost(place: Place) -> None:
    async def story() -> None:
        name = await place.said()
        late = await place.service.end(name, None, RolloutEnd.DEADLINE)
        assert await place.service.end(name, Given(0.1, {})) == late
        assert place.rewards(late) == [0.1]
        name = await place.said("5")
        first = await place.service.end(name, Given(0.1, {"form": 1.0}))
        assert await place.service.end(name, Given(0.1, {"form": 1.0})) == first
        assert place.rewards(first) == [], "it is the one that is stored"
        with pytest.raises(RowError, match="give the number alone"):
            await place.service.reward(name, Given(0.5, {"form": 1.0}), "thumbs")

    asyncio.run(story())


def test_a_reward_that_comes_while_an_end_fails_is_kept(place: Place) -> None:
    async def story() -> None:
        name = await place.said()
        place.halting.go_on.clear()
        place.halting.fails = True
        ending = asyncio.create_task(place.service.end(name, None))
        await place.appending()
        rewarding = asyncio.create_task(place.service.reward(name, GOOD, "thumbs"))
        await asyncio.sleep(0)
        place.halting.go_on.set()
        with pytest.raises(DiskFullError):
            await ending
        assert await rewarding == {"id": name, "stored": False}
        place.halting.fails = False
        assert await place.service.end(name, None) is not None
        assert place.buffer.read("experiences", ["reward"]).to_pylist() == [{"reward": 1.0}]

    asyncio.run(story())


@pytest.mark.slow
def test_tasks_without_a_prompt_are_told_apart_by_what_was_asked(place: Place) -> None:
    async def story() -> None:
        for text in ("4", "5"):
            await place.service.end(await place.said(text, Task("sums", (), "same")), GOOD)
        given_up = await place.said("6", Task("sums", (), "same"))
        await place.service.abandon(given_up, "")

    asyncio.run(story())
    prompts = [task.messages[-1]["content"] for task in place.buffer.tasks()]
    assert sorted(str(prompt) for prompt in prompts) == ["4", "5"]
    assert place.buffer.read("groups", ["taskset"]).to_pylist() == [{"taskset": "sums"}]


@pytest.mark.slow
def test_a_turn_under_a_grammar_is_stored_and_has_no_loss(place: Place) -> None:
    async def story() -> None:
        trajectory = await place.service.open(None)
        talk = Talk(trajectory)
        history: list[Any] = [*ASK]
        for text, constrained in (("4", False), ("five", True)):
            said = talk.say(history, text)
            list(trajectory.turns)[-1].constrained = constrained
            history += [{"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        free, bound = trajectory.turns
        (row,) = talk.rows()
        assert sum(row.action_mask or ()) == len(free.sampled)
        assert list(row.token_ids or ())[-len(bound.sampled) :] == bound.sampled
        free.constrained = True
        stored = await place.service.end(trajectory.id, GOOD)
        assert stored is not None
        assert (stored["rows"], stored["refused_rows"]) == (1, 0)

    asyncio.run(story())


def test_parts_without_a_reward_are_refused() -> None:
    with pytest.raises(ValidationError, match="give 'reward' too"):
        Ending(parts={"form": 1.0})
