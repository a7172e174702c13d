"""One environment per rollout: reused after good ones, closed after all others, none left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from explorers.environments.pool import EnvironmentPool, PoolPlan
from explorers.environments.thread import LateCall
from rft_data.core.errors import RecipeError
from tests.waiting import LIMIT_S, came


class Room:
    """Counts itself, and may be slow."""

    def __init__(self, log: list[str], *, make_s: float = 0.0) -> None:
        time.sleep(make_s)
        self.log = log
        self.thread = threading.get_ident()
        log.append("made")

    def reset(self, seconds: float = 0.0) -> str:
        assert threading.get_ident() == self.thread
        time.sleep(seconds)
        return "ready"

    def close(self) -> None:
        assert threading.get_ident() == self.thread
        self.log.append("closed")


class AsyncRoom(Room):
    """One whose methods are coroutines."""

    async def reset(self, seconds: float = 0.0) -> str:  # type: ignore[override]
        await asyncio.sleep(seconds)
        return "ready"

    async def close(self) -> None:  # type: ignore[override]
        self.log.append("closed")


def pool_of(make: Callable[[], Any], *, reusable: bool = True, **plan: Any) -> EnvironmentPool[Any]:
    return EnvironmentPool("room", make, PoolPlan(**plan), reusable=reusable)


async def settled(pool: EnvironmentPool[Any], least: int = 0) -> int:
    """Environments that are open once the closings are over, and so many were made."""
    await came(lambda: pool.open == 0 and pool.made >= least)
    return pool.open


async def played(pool: EnvironmentPool[Any], seconds: float = 0.0) -> None:
    async with pool.lend() as lent:
        assert await pool.reset(lent, lent.environment.reset, seconds) == "ready"
        async with pool.turn():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", [Room, AsyncRoom])
def test_good_rollouts_share_environments_and_all_are_closed_at_the_end(kind: type[Room]) -> None:
    log: list[str] = []
    pool = pool_of(lambda: kind(log), size=4)

    async def many() -> None:
        await asyncio.gather(*(played(pool) for _ in range(40)))

    asyncio.run(many())
    assert 1 <= pool.made <= 4
    assert pool.open == pool.made
    pool.close()
    assert (pool.open, pool.leaks, log.count("closed")) == (0, 0, pool.made)


def test_an_environment_that_cannot_be_reset_serves_one_rollout() -> None:
    log: list[str] = []
    pool = pool_of(lambda: Room(log), reusable=False, size=2)

    async def three() -> int:
        for _ in range(3):
            await played(pool)
        return await settled(pool)

    assert asyncio.run(three()) == 0
    assert log.count("made") == log.count("closed") == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Room, AsyncRoom])
def test_nothing_is_left_of_300_cancelled_rollouts(kind: type[Room]) -> None:
    log: list[str] = []
    pool = pool_of(lambda: kind(log, make_s=0.001), size=16, warm=4)

    async def cancelled() -> int:
        for _ in range(3):
            rollouts = [asyncio.create_task(played(pool, 0.002)) for _ in range(100)]
            await asyncio.sleep(0.02)
            for rollout in rollouts:
                rollout.cancel()
            await asyncio.gather(*rollouts, return_exceptions=True)
        await asyncio.wait_for(played(pool), LIMIT_S)  # every place is free again
        pool.close()
        return await settled(pool)

    assert asyncio.run(cancelled()) == 0
    assert pool.leaks == 0
    assert log.count("made") == log.count("closed") == pool.made > 3


def test_a_failed_rollout_closes_its_environment() -> None:
    log: list[str] = []
    pool = pool_of(lambda: Room(log))

    async def failed() -> int:
        with pytest.raises(ZeroDivisionError):
            async with pool.lend():
                raise ZeroDivisionError
        return await settled(pool)

    assert asyncio.run(failed()) == 0
    assert log == ["made", "closed"]


def test_a_late_reset_is_an_error_at_its_deadline_and_its_environment_is_closed_when_it_returns() -> None:
    log: list[str] = []
    returns = threading.Event()

    def reset() -> None:
        returns.wait(LIMIT_S)

    async def late() -> int:
        with pytest.raises(LateCall, match=r"reset took longer than 0\.05 s"):
            async with pool.lend() as lent:
                await pool.reset(lent, reset)
        assert log == ["made"]  # the reset has not returned yet
        returns.set()
        return await settled(pool)

    pool = pool_of(lambda: Room(log))
    pool.check()
    pool._plan = PoolPlan(start_deadline_s=0.05)  # for the reset, not for making the room

    assert asyncio.run(late()) == 0
    assert (log, pool.leaks) == (["made", "closed"], 0)


@pytest.mark.parametrize("warm", [0, 2])
def test_while_one_plays_so_many_more_are_reset_ahead(warm: int) -> None:
    pool = pool_of(lambda: Room([]), size=1, warm=warm)
    ready: list[int] = []

    async def rollout(number: int, end: asyncio.Event) -> None:
        async with pool.lend() as lent:
            await pool.reset(lent, lent.environment.reset)
            ready.append(number)
            async with pool.turn():
                await end.wait()

    async def six() -> list[int]:
        end = asyncio.Event()
        rollouts = [asyncio.create_task(rollout(n, end)) for n in range(6)]
        await came(lambda: len(ready) > warm)
        await asyncio.sleep(0.02)  # no further one may come
        found = len(ready)
        end.set()
        await asyncio.gather(*rollouts)
        return [found, len(ready)]

    assert asyncio.run(six()) == [1 + warm, 6]
    assert pool.made == 1 + warm
    pool.close()


def test_an_environment_that_cannot_be_made_is_an_error_at_the_start() -> None:
    def broken() -> Any:
        raise FileNotFoundError("no such map")

    with pytest.raises(RecipeError, match=r"'room' cannot be made \(FileNotFoundError: no such map\)"):
        pool_of(broken).check()
    with pytest.raises(RecipeError, match=r"\(took too long\)"):
        pool_of(partial(threading.Event().wait, LIMIT_S), start_deadline_s=0.02).check()
    log: list[str] = []
    may = threading.Event()
    late = pool_of(lambda: may.wait(LIMIT_S) and Room(log), start_deadline_s=0.02)
    with pytest.raises(RecipeError, match=r"\(took too long\)"):
        late.check()
    may.set()
    assert asyncio.run(settled(late, least=1)) == 0
    assert log == ["made", "closed"]


def test_a_close_that_raises_is_a_leak_and_frees_its_place() -> None:
    class Stuck(Room):
        def close(self) -> None:
            raise OSError("busy")

    pool = pool_of(lambda: Stuck([]), reusable=False, size=1)

    async def two() -> None:
        await played(pool)
        await asyncio.wait_for(played(pool), LIMIT_S)
        await came(lambda: pool.leaks == 2)

    asyncio.run(two())
    assert pool.open == 2
    idle = pool_of(lambda: Stuck([]))
    asyncio.run(played(idle))
    idle.close()
    assert (idle.leaks, idle.open) == (1, 1)
