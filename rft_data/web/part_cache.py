"""Caches what was computed from a part of a table. A part never changes, so a result never grows old."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")
_OVERHEAD_BYTES = 512
"""Bytes counted for a value and its key beside the value itself."""


class Kept(Generic[T]):
    """Values by the parts they come from, of at most `max_bytes`; those asked for last stay."""

    def __init__(self, max_bytes: int, size: Callable[[T], int]) -> None:
        """Args: size: bytes of a value."""
        self._max_bytes = max_bytes
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self.nbytes = 0
        """Bytes of all values that are kept."""
        self._lock = Lock()

    def of(self, key: Hashable, made: Callable[[], T]) -> T:
        """The value under a key, which is made if it is not kept; the key names the parts it comes from."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = made()
        with self._lock:
            if key not in self._values:
                self.nbytes += self._size(value) + _OVERHEAD_BYTES
            self._values[key] = value
            while self.nbytes > self._max_bytes:
                _, oldest = self._values.popitem(last=False)
                self.nbytes -= self._size(oldest) + _OVERHEAD_BYTES
        return value
