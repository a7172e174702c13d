"""An event loop in a thread of its own, for placements whose roles run elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rft_data.core.errors import RftError

T = TypeVar("T")


class Background:
    """A running loop; what is submitted runs in its thread, in order."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
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
        """Whether it has not been closed."""
        return self._thread.is_alive()

    def submit(self, call: Callable[..., object], *arguments: Any) -> bool:
        """Have something called soon; False if the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # closed
            return False
        return True

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have a coroutine run, which must have its own deadlines."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, which must have its own deadlines.

        Raises: what it raises; RftError when called from the loop's own thread, which could never end.
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
