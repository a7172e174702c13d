"""Which fragments kill the process that decodes them: found by letting a child process try.

A flipped bit can make a decoder ask for terabytes; Rust then aborts, and nothing can catch that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rft_data.core.children import Child

DEADLINE_S = 300.0
"""The longest one batch may take to decode."""


@dataclass(frozen=True, slots=True)
class Part:
    """A fragment of one version of a table and the columns to read of it; or a data file by itself."""

    path: str
    version: int | None = None
    """None: `path` is a data file, to be read without a manifest."""
    fragment: int = 0
    columns: tuple[str, ...] = ()


def lethal(parts: Sequence[Part]) -> set[Part]:
    """Those of `parts` that a process does not survive decoding, or does not finish in time."""
    found: set[Part] = set()
    start = 0
    while start < len(parts):
        reached = start + _try(parts[start:])
        if reached < len(parts):
            found.add(parts[reached])
        start = reached + 1
    return found


def _try(parts: Sequence[Part]) -> int:
    """How many of `parts` a child process gets through before it dies, or hangs."""
    done = 0
    child = Child("rft_data.buffer.care.trial_worker", on_line=lambda _: None)  # panics say nothing to a user
    try:
        child.send(json.dumps([asdict(part) for part in parts]).encode() + b"\n")
        while True:
            done += child.line(DEADLINE_S) == b"done"
    except (EOFError, TimeoutError):
        return done
    finally:
        child.close()
