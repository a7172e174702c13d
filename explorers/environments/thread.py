"""A thread for each environment, so that code that blocks does not hold up the event loop.

An environment is made, called and closed in one thread: libraries that bind an object to its thread work, and
no two calls of one environment run at once. Python cannot stop a thread, so a call past its deadline goes on
without its caller; until it returns, further calls are refused.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class StillBusy(Exception):
    """The environment has not returned from an earlier call that passed its deadline."""


class LateCall(TimeoutError):
    """A call of an environment took longer than its deadline."""


class EnvironmentThread:
    """Runs calls one after another; a daemon, so that a call that never returns does not keep the process."""

    def __init__(self, name: str) -> None:
        """`name`: of the thread, for stack dumps. It starts at once."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._last_is_done: Callable[[], bool] | None = None
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def call(self, deadline_s: float, function: Callable[[], T], what: str) -> T:
        """Run a function in the thread; `what` it is, for messages.

        Raises: LateCall past the deadline, StillBusy while an earlier call runs on, and what the function
            raises.
        """
        if self.busy:
            raise StillBusy("an earlier call has passed its deadline and has not returned yet")
        future = self.start(function)
        self._last_is_done = future.done
        return await within(deadline_s, asyncio.wrap_future(future), what)

    @property
    def busy(self) -> bool:
        """Whether a call runs, one that has passed its deadline included."""
        return self._last_is_done is not None and not self._last_is_done()

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Run a function after all that was given before."""
        future: Future[T] = Future()
        self._work.put(partial(_run, future, function))
        return future

    def end(self) -> None:
        """End the thread after all that was given."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _run(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as err:  # noqa: BLE001 - environments are user code; passed to the caller
        future.set_exception(_carried(err))
    except BaseException as err:  # noqa: BLE001 - the same
        future.set_exception(RuntimeError(f"raised {type(err).__name__}: {err}"))


async def within(deadline_s: float, work: Awaitable[T], what: str) -> T:
    """Await `work`. Raises: LateCall past the deadline, which a TimeoutError of its own is not."""
    try:
        async with asyncio.timeout(deadline_s) as limit:
            return await work
    except TimeoutError as err:
        if not limit.expired():
            raise
        raise LateCall(f"{what} took longer than {deadline_s:g} s") from err


def _carried(error: Exception) -> Exception:
    """An error that a future can carry: asyncio refuses StopIteration."""
    return RuntimeError(f"raised StopIteration: {error}") if isinstance(error, StopIteration) else error
