"""Which fragments kill the process that decodes them: found by letting a child process try.

A flipped bit can make a decoder ask for terabytes; Rust then aborts, and nothing can catch that.
This file is also the child's script, so its top imports only the standard library.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
    """How many of `parts` a child process gets through before it dies."""
    command = [sys.executable, "-P", __file__]
    with subprocess.Popen(  # noqa: S603 (our own file)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise OSError("a child process without pipes")
        child.stdin.write(json.dumps([asdict(part) for part in parts]).encode())
        child.stdin.close()
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while selector.select(DEADLINE_S):
                chunk = os.read(child.stdout.fileno(), 1 << 16)  # unbuffered: what was said is seen at once
                if not chunk:
                    break
                said += chunk
        child.kill()
    return said.split(b"\n")[:-1].count(b"done")


def _decode(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Read every part; yields a line for each batch, and `done` after each part."""
    for part in parts:
        try:
            for _ in _batches(part):
                yield "batch"
        except BaseException as err:  # a panic is no Exception; that it can be caught is all we ask
            if isinstance(err, (KeyboardInterrupt, SystemExit)):
                raise
        yield "done"


def _batches(part: Mapping[str, Any]) -> Any:
    import lance
    from lance.file import LanceFileReader

    if part["version"] is None:
        return [LanceFileReader(part["path"]).read_all().to_table()]
    dataset: Any = lance.dataset(part["path"], version=part["version"])
    fragment = dataset.get_fragment(part["fragment"])
    return dataset.scanner(columns=part["columns"], fragments=[fragment], batch_readahead=2).to_reader()


if __name__ == "__main__":
    for word in _decode(json.load(sys.stdin)):
        sys.stdout.write(word + "\n")
        sys.stdout.flush()
