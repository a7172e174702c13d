"""Finds the fragments that kill a process that decodes them, by decoding them in a child process.

A flipped bit can make a decoder allocate terabytes; Rust then aborts, which cannot be caught.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rft_data.core.children import Child
from rft_data.core.decoding_trial import Part

DEADLINE_S = 300.0
"""Time limit for decoding one batch."""


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
    # panic messages do not help a user
    child = Child("rft_data.core.decoding_trial", on_line=lambda _: None)
    try:
        child.send(json.dumps([asdict(part) for part in parts]).encode() + b"\n")
        while True:
            done += child.line(DEADLINE_S) == b"done"
    except (EOFError, TimeoutError):
        return done
    finally:
        child.close()
