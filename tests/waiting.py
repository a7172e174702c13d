"""Waits for what another thread or process does. The limit is for defects: no busy machine reaches it."""

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 120.0


def wait_for(condition: Callable[[], object], within_s: float = LIMIT_S) -> None:
    """Wait until it holds, or fail."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {within_s} s"
        time.sleep(0.01)


async def came(condition: Callable[[], object], within_s: float = LIMIT_S) -> None:
    """The same in an event loop, which goes on meanwhile."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {within_s} s"
        await asyncio.sleep(0.001)


async def turns(number: int = 100) -> None:
    """Let the other tasks of the event loop have so many turns, however long these take."""
    for _ in range(number):
        await asyncio.sleep(0)
