"""Lets an engine make a number of steps, whether the test steps it or it steps by itself."""

from __future__ import annotations

import asyncio
from typing import Any


def hold(engine: Any, steps: int) -> None:
    """Let an engine that steps by itself make so many steps now and after each swap, and then wait.

    One that drains cannot be held: its swap waits until all requests have finished.
    """
    if hasattr(engine, "brake") and engine._swap.mode != "drain":
        engine.brake.each.value = engine.brake.left.value = steps


async def advance(engine: Any, steps: int) -> None:
    """Make so many steps; what `hold` has allowed, where the engine steps by itself."""
    if not hasattr(engine, "brake"):
        for _ in range(steps):
            await asyncio.sleep(0)
        return
    while engine.brake.left.value > 0:
        await asyncio.sleep(0.001)


def let_go(engine: Any) -> None:
    """Let it make as many steps as it likes."""
    if hasattr(engine, "brake"):
        engine.brake.each.value = engine.brake.left.value = engine.brake.free
