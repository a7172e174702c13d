"""Caches replies of a judge in a SQLite file, so that a restart does not ask again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY,
    text TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    created_at TEXT DEFAULT CURRENT_TIMESTAMP
) WITHOUT ROWID
"""
_ADD = "INSERT OR IGNORE INTO replies (key, text, tokens) VALUES (?, ?, ?)"
_WAIT_S = 30.0
_AT_ONCE = 500
"""Keys in one query; SQLite has a bound on the parameters."""
_IN_MEMORY = 65_536
"""Replies kept without a file, at about 1 kB each; the oldest go first."""


class JudgeCache:
    """Replies by content key. Several processes may share a file; without a path replies stay in memory."""

    def __init__(self, path: str | None) -> None:
        """`path`: of the SQLite file, which the first use creates."""
        self._path = None if path is None else Path(path)
        self._memory: dict[str, str] = {}

    def find(self, keys: Sequence[str]) -> dict[str, str]:
        """The replies that are known, by key."""
        if self._path is None:
            return {key: self._memory[key] for key in keys if key in self._memory}
        found: dict[str, str] = {}
        with closing(_opened(self._path)) as file:
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                found.update(file.execute(f"SELECT key, text FROM replies WHERE key IN ({marks})", part))  # noqa: S608
        return found

    @contextmanager
    def adding(self) -> Iterator[Callable[[str, str, int], None]]:
        """A function that stores one reply (key, text, tokens) at once; for use in this thread."""
        if self._path is None:
            yield self._remember
            return
        with closing(_opened(self._path)) as file:

            def add(key: str, text: str, tokens: int) -> None:
                with file:
                    file.execute(_ADD, (key, text, tokens))

            yield add

    def _remember(self, key: str, text: str, tokens: int) -> None:
        self._memory[key] = text
        if len(self._memory) > _IN_MEMORY:
            del self._memory[next(iter(self._memory))]


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = sqlite3.connect(path, timeout=_WAIT_S)
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("PRAGMA synchronous=NORMAL")
    file.execute(_SCHEMA)
    return file
