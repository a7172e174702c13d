"""Finds the fragments that kill a process that decodes them, by decoding them in a child process.

A flipped bit can make a decoder allocate terabytes; Rust then aborts, which cannot be caught.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rft_data.core.children import Child

DEADLINE_S = 300.0
"""Time limit for decoding one batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """A fragment of one version of a table and the columns to read of it; or a data file by itself."""

    path: str
    version: int | None = None
    """None: `path` is a data file, to be read without a manifest."""
    fragment: int = 0
    columns: tuple[str, ...] = ()


def lethal(parts: Sequence[Part]) -> set[Part]:
    """The parts that kill the process that decodes them, or are not decoded in time."""
    found: set[Part] = set()
    start = 0
    while start < len(parts):
        reached = start + _try(parts[start:])
        if reached < len(parts):
            found.add(parts[reached])
        start = reached + 1
    return found


def _try(parts: Sequence[Part]) -> int:
    """Number of parts that a child process decodes before it dies or hangs."""
    done = 0
    child = Child(
        "rft_data.buffer.care.trial_worker", on_line=lambda _: None
    )  # panic messages do not help a user
    try:
        child.send(json.dumps([asdict(part) for part in parts]).encode() + b"\n")
        while True:
            done += child.line(DEADLINE_S) == b"done"
    except (EOFError, TimeoutError):
        return done
    finally:
        child.close()
