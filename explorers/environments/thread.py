"""A thread for each environment, so that code that blocks does not hold up the event loop.

An environment is made, called and closed in one thread: libraries that bind an object to its thread work, and
no two calls of one environment run at once. Python cannot stop a thread, so a call past its deadline goes on
without its caller; until it returns, further calls are refused.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Work = tuple["Future[Any]", Callable[[], Any]]


class StillBusy(Exception):
    """The environment has not returned from an earlier call that passed its deadline."""


class LateCall(TimeoutError):
    """A call of an environment took longer than its deadline."""


class EnvironmentThread:
    """Runs calls one after another; a daemon, so that a call that never returns does not keep the process."""

    def __init__(self, name: str) -> None:
        """`name`: of the thread, for stack dumps. It starts at once."""
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def call(self, deadline_s: float, function: Callable[[], Any], what: str) -> Any:
        """Run a function in the thread; `what` it is, for messages.

        Raises: LateCall past the deadline, StillBusy while an earlier call runs on, and what the function
            raises.
        """
        if self.busy:
            raise StillBusy("an earlier call has passed its deadline and has not returned yet")
        future = self._last = self.start(function)
        return await within(deadline_s, asyncio.wrap_future(future), what)

    @property
    def busy(self) -> bool:
        """Whether a call runs, one that has passed its deadline included."""
        return self._last is not None and not self._last.done()

    def start(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function after all that was given before."""
        future: Future[Any] = Future()
        self._work.put((future, function))
        return future

    def end(self) -> None:
        """End the thread after all that was given."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            future, function = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as err:  # noqa: BLE001 - environments are user code; passed to the caller
                future.set_exception(_carried(err))
            except BaseException as err:  # noqa: BLE001 - the same
                future.set_exception(RuntimeError(f"raised {type(err).__name__}: {err}"))


async def within(deadline_s: float, work: Any, what: str) -> Any:
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
