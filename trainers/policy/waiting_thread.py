"""A thread that carries out one order at a time, and waits for the next in between.

It makes single calls out of a loop that does not return between steps (a trainer's own `train()`). It knows
nothing of training.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from rft_data.core.errors import StalledError

Order = TypeVar("Order")


class WaitingThread(Generic[Order]):
    """Runs `body` in a thread. `body` calls `next_order` for each order and returns when that gives None.

    The thread starts with the first order. It has one caller at a time.
    """

    def __init__(self, name: str, body: Callable[[], None], deadline_s: float) -> None:
        """`deadline_s`: longest wait of the caller for one order, and for the end of the thread."""
        self._body = body
        self._deadline_s = deadline_s
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._working = False
        # A daemon, so that a process that did not close it can still exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def carry_out(self, order: Order) -> None:
        """Hand over one order and wait until it is done.

        Raises: what the body raised; StalledError past the deadline (the thread may still be working).
        """
        self._orders.put(order)
        if self._thread.ident is None:
            self._thread.start()
        try:
            error = self._finished.get(timeout=self._deadline_s)
        except queue.Empty:
            raise StalledError(
                f"{self._thread.name} has not finished in {self._deadline_s:g} s; if its steps really take "
                "longer, raise the deadline, otherwise look at the stack of that thread (py-spy dump)."
            ) from None
        if error is not None:
            raise error

    def next_order(self) -> Order | None:
        """Called in the thread: report the order before as done, and wait for the next.

        Returns: the order, or None when the body should return.
        """
        if self._working:
            self._finished.put(None)
        self._working = True
        return self._orders.get()

    def close(self) -> None:
        """Stop the thread after its current order; idempotent.

        Raises: StalledError when it has not ended by the deadline.
        """
        self._orders.put(None)
        if self._thread.ident is not None:
            self._thread.join(self._deadline_s)
        if self._thread.is_alive():
            raise StalledError(
                f"{self._thread.name} has not ended in {self._deadline_s:g} s after it was closed; "
                "look at its stack (py-spy dump), or end the process."
            )

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as err:  # noqa: BLE001 - the caller is given every error of the thread
            self._finished.put(err)
        else:
            self._finished.put(None)
