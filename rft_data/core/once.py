"""A value that many threads want at the same time and that is made once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """The first thread that asks makes the value, the others wait for it."""

    def __init__(self, make: Callable[[], T]) -> None:
        """`make` is called again by the next thread if it raised."""
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []

    def value(self) -> T:
        """The value. Raises: whatever `make` raises."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]
