"""A bounded pool of environments: each rollout has one to itself, and none outlives its use.

An environment that can be reset serves one rollout after another. After a rollout that failed, was cancelled
or was late it is closed, and another is made when one is needed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from explorers import clock
from explorers.environments.thread import EnvironmentThread, within
from rft_data.core.errors import RecipeError

log = logging.getLogger(__name__)
E = TypeVar("E")
P = ParamSpec("P")
T = TypeVar("T")
_CLOSE_S = 10.0
"""How long to wait for a `close` before its place in the pool is given to another."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """How many environments there are, and for how long to wait for one."""

    size: int = 1024
    """Environments that are played at a time; further rollouts wait."""
    warm: int = 0
    """Environments more that are reset ahead, for rollouts that wait for their turn."""
    start_deadline_s: float = 120.0
    """Seconds for making an environment, and for one `reset`."""


class Lent(Generic[E]):
    """An environment in the hands of one rollout."""

    def __init__(self, kind: str) -> None:
        self.thread = EnvironmentThread(f"environment-{kind}")
        self.made: E | None = None

    @property
    def environment(self) -> E:
        if self.made is None:
            raise RuntimeError("the environment has not been made")
        return self.made

    async def call(
        self, deadline_s: float, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method: a coroutine function in the event loop, any other in the environment's thread.

        Raises: LateCall, StillBusy, and what the method raises.
        """
        what = getattr(method, "__name__", "the call")
        with clock.during("acting"):
            if inspect.iscoroutinefunction(method):
                return await within(deadline_s, method(*args, **kwargs), what)
            return await self.thread.call(deadline_s, partial(method, *args, **kwargs), what)

    def make(self, make: Callable[[], E]) -> None:
        """Make the environment; to be run in its thread."""
        self.made = make()


class EnvironmentPool(Generic[E]):
    """Lends environments of one kind. All callers are in one event loop, `close` and `check` excepted."""

    def __init__(self, name: str, make: Callable[[], E], plan: PoolPlan, *, reusable: bool) -> None:
        """`name`: for messages; `reusable`: whether a `reset` makes a used environment as good as new."""
        self._name = name
        self._make = make
        self._plan = plan
        self._reusable = reusable
        self._places = asyncio.Semaphore(plan.size + plan.warm)
        self._turns = asyncio.Semaphore(plan.size)
        self._idle: list[Lent[E]] = []
        self._closing: set[object] = set()  # the loop itself keeps only weak references
        self._ending: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.made = 0
        """Environments made since the start."""
        self.open = 0
        """Environments that are made and not closed."""
        self.leaks = 0
        """Environments whose `close` raised, or has not returned in time."""

    def check(self) -> E:
        """Make one environment now and keep it for the first rollout; returns it, to be looked at.

        Raises: RecipeError when it cannot be made.
        """
        lent: Lent[E] = Lent(self._name)
        try:
            lent.thread.start(partial(self._made, lent)).result(self._plan.start_deadline_s)
        except Exception as err:
            self._end(lent)  # which closes one that is made too late
            late = isinstance(err, TimeoutError)
            why = "took too long" if late else f"{type(err).__name__}: {err}"
            raise RecipeError(
                f"environment '{self._name}' cannot be made ({why}); try it in Python, and correct it or its "
                "'args' in the recipe."
            ) from err
        self._idle.append(lent)
        return lent.environment

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Lent[E]]:
        """An environment for one rollout, which it may reset now and plays in its `turn`.

        Raises: LateCall when making one takes too long, and what making it raises.
        """
        with clock.during("waiting"):
            await self._places.acquire()
        lent: Lent[E] | None = None
        good = False
        try:
            lent = self._idle.pop() if self._idle else Lent(self._name)
            if lent.made is None:
                making = partial(self._made, lent)
                with clock.during("acting"):
                    await lent.thread.call(self._plan.start_deadline_s, making, f"making '{self._name}'")
            yield lent
            good = True
        finally:
            if lent is None:
                self._places.release()
            elif good and self._reusable and not self._closed and not lent.thread.busy:
                self._idle.append(lent)
                self._places.release()
            else:
                self._retire(lent)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until this rollout may be played: at most `size` are at a time."""
        with clock.during("waiting"):
            await self._turns.acquire()
        try:
            yield
        finally:
            self._turns.release()

    async def reset(self, lent: Lent[E], reset: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the environment's `reset` with the deadline for it. Raises: as `Lent.call`."""
        return await lent.call(self._plan.start_deadline_s, reset, *args, **kwargs)

    def close(self) -> None:
        """Close the environments that are not in use; the others are closed when their rollouts end.

        Idempotent. It waits for each `close`, those that run already included, for a bounded time.
        """
        self._closed = True
        idle, self._idle = self._idle, []
        mine = [self._end(lent, partial(_run_close, lent) if _closes_async(lent) else None) for lent in idle]
        wait([*mine, *self._ending], timeout=_CLOSE_S)
        for ending in mine:
            if not ending.done():
                self._leaked(TimeoutError(f"close took longer than {_CLOSE_S:g} s"))
            elif error := ending.exception():
                self._leaked(error)

    def _made(self, lent: Lent[E]) -> None:
        lent.make(self._make)
        self._count(1)

    def _count(self, change: int) -> None:
        with self._lock:
            self.open += change
            self.made += max(change, 0)

    def _retire(self, lent: Lent[E]) -> None:
        """Close an environment without waiting for it; its place is free when it is closed, or too late."""
        closing = asyncio.get_running_loop().create_task(self._close(lent))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, lent: Lent[E]) -> None:
        try:
            await within(_CLOSE_S, asyncio.shield(asyncio.wrap_future(self._end(lent))), "close")
            if _closes_async(lent):
                await within(_CLOSE_S, _closer(lent)(), "close")
                self._count(-1)
        except Exception as err:  # noqa: BLE001 - environments are user code
            self._leaked(err)
        finally:
            self._places.release()

    def _end(self, lent: Lent[E], close: Callable[[], object] | None = None) -> Future[None]:
        """Close an environment in its thread, after the call that may still run there, and end the thread."""

        def last() -> None:
            if lent.made is None or (close is None and _closes_async(lent)):
                return
            (close or _closer(lent))()
            self._count(-1)

        ending = lent.thread.start(last)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        lent.thread.end()
        return ending

    def _leaked(self, error: BaseException) -> None:
        self.leaks += 1
        if self.leaks == 1:
            log.warning(
                "environment '%s' could not be closed (%s: %s)", self._name, type(error).__name__, error
            )


def _closer(lent: Lent[E]) -> Callable[[], Any]:
    close: Callable[[], Any] = getattr(lent.made, "close", _nothing)
    return close


def _closes_async(lent: Lent[E]) -> bool:
    return inspect.iscoroutinefunction(_closer(lent))


def _run_close(lent: Lent[E]) -> None:
    """Close what closes with a coroutine, without the caller's event loop."""
    asyncio.run(_closer(lent)())


def _nothing() -> None:
    """The `close` of an environment that has none."""
