"""Groups of one explorer share appends: each gets its own row numbers, and none waits long."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from explorers import shared_appends as module
from explorers.shared_appends import SharedAppends
from rft_data.core.errors import StalledError
from rft_data.core.rows import Experience
from tests.explorers.toys import Answer, SlowBuffer
from tests.rft_data.conftest import make_experience
from tests.waiting import LIMIT_S, came


def rows(group: int, count: int = 2) -> list[Experience]:
    return [make_experience(experience_id=f"{group}-{n}", group_id=str(group)) for n in range(count)]


async def group(appends: SharedAppends, number: int, pause_s: float = 0.01, count: int = 2) -> list[int]:
    with appends.playing():
        await asyncio.sleep(pause_s)
    return await appends.append(rows(number, count))


def played(*groups: Coroutine[Any, Any, Any]) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*groups, return_exceptions=True)

    return asyncio.run(asyncio.wait_for(all_of_them(), LIMIT_S / 2))


def test_groups_share_an_append_and_get_their_own_row_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", LIMIT_S)
    buffer = SlowBuffer()
    appends = SharedAppends(buffer)
    found = played(
        group(appends, 0, 0.01), group(appends, 1, 0.02, count=0), group(appends, 2, 0.03, count=3)
    )
    assert found == [[0, 1], [], [2, 3, 4]]
    assert [[row.group_id for row in call] for call in buffer.calls] == [["0", "0", "2", "2", "2"]]


def test_a_group_waits_no_longer_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    buffer = SlowBuffer()
    appends = SharedAppends(buffer)

    async def both() -> float:
        with appends.playing():  # another, until the first group is stored
            began = time.monotonic()
            await group(appends, 0, 0.0)
            waited = time.monotonic() - began
        await group(appends, 1)
        return waited

    (waited,) = played(both())
    assert waited >= 0.05
    assert len(buffer.calls) == 2


def test_many_tokens_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", LIMIT_S)
    monkeypatch.setattr(module, "MAX_TOKENS", 1)
    buffer = SlowBuffer()
    appends = SharedAppends(buffer)

    async def both() -> None:
        with appends.playing():
            await group(appends, 0)
        await group(appends, 1)

    played(both())
    assert len(buffer.calls) == 2


def test_rows_that_the_door_refuses_have_no_number() -> None:
    class Refusing(SlowBuffer):
        def append(self, rows: Sequence[Experience]) -> Any:
            return Answer(tuple(None if n % 2 else n for n in range(len(rows))))

    appends = SharedAppends(Refusing())
    assert played(group(appends, 0, count=3), group(appends, 1, count=3)) == [[0, 2], [4]]


def test_an_error_reaches_every_group() -> None:
    appends = SharedAppends(SlowBuffer(error=StalledError("the hub is gone")))
    found = played(group(appends, 0), group(appends, 1))
    assert [str(err) for err in found] == ["the hub is gone"] * 2


def test_a_group_whose_caller_is_cancelled_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", LIMIT_S)
    buffer = SlowBuffer()
    appends = SharedAppends(buffer)

    async def cancelled() -> None:
        with appends.playing():
            waiting = asyncio.create_task(group(appends, 0))
            await came(lambda: appends._waiting)
            waiting.cancel()
        assert await group(appends, 1) == [2, 3]

    asyncio.run(asyncio.wait_for(cancelled(), LIMIT_S / 2))
    assert [len(call) for call in buffer.calls] == [4]
