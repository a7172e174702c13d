"""Wall time by phase."""

from __future__ import annotations

import time


class Stopwatch:
    """Adds the wall seconds of a `with` block to `book[phase]`."""

    def __init__(self, book: dict[str, float], phase: str) -> None:
        self._book = book
        self._phase = phase

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._book[self._phase] = self._book.get(self._phase, 0.0) + time.perf_counter() - self._start
