"""An event loop in its own thread, for placements whose roles run in other processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar, TypeVarTuple

from rft_data.core.errors import RftError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Background:
    """A running event loop; submitted calls run in its thread, in order."""

    def __init__(self, name: str) -> None:
        """Start the thread; `name` is its name."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()

    @property
    def alive(self) -> bool:
        """Whether the thread runs: true until `close`."""
        return self._thread.is_alive()

    def submit(self, call: Callable[[*Arguments], object], *arguments: *Arguments) -> bool:
        """Schedule a call in the thread of the loop; False if the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # closed
            return False
        return True

    def start(self, work: Coroutine[object, None, T]) -> Future[T]:
        """Start a coroutine and return its future; the coroutine must have its own deadlines."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[object, None, T]) -> T:
        """Run a coroutine and wait for its result; the coroutine must have its own deadlines.

        Raises: what the coroutine raises; RftError in the loop's own thread, where it would wait forever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RftError(
                "a role cannot be started or closed in a callback of its own futures; "
                "do it in the thread that made the placement."
            )
        return self.start(work).result()

    def close(self) -> None:
        """End the loop and its thread; idempotent."""
        if self.submit(self.loop.stop):
            self._thread.join()
