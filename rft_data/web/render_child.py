"""The child process of `rendering.py`: reads one row, calls the renderer, answers with one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rft_data.core.children import connected, limit_memory
from rft_data.core.lookup import load, own_code_from

_MOST_BYTES = 1_000_000
_MEMORY_GIB = 2


def main() -> None:
    """Answer with what the renderer made, or why it made nothing."""
    channel = connected()
    name, folders = sys.argv[3:5]
    for folder in filter(None, folders.split(os.pathsep)):
        own_code_from(Path(folder))
    with channel.makefile("rb") as stream:
        row = json.loads(stream.readline())
    limit_memory(_MEMORY_GIB << 30)
    channel.sendall(_answer(name, row) + b"\n")


def _answer(name: str, row: object) -> bytes:
    try:
        made = load(name, "renderer")(row)
    except MemoryError:
        return json.dumps({"wrong": f"it needs more than {_MEMORY_GIB} GiB of memory."}).encode()
    except Exception as err:  # noqa: BLE001 - renderers are user code
        return json.dumps({"wrong": f"{type(err).__name__}: {err}"[:2_000]}).encode()
    try:
        answer = json.dumps({"made": made}).encode()
    except (TypeError, ValueError, RecursionError):
        kind = type(made).__name__
        answer = json.dumps(
            {"wrong": f"it returned {kind}; wanted a text, a mapping, or a list of rows, of plain values."}
        ).encode()
    if len(answer) > _MOST_BYTES:
        return json.dumps({"wrong": f"it returned {len(answer):,} bytes; at most {_MOST_BYTES:,}."}).encode()
    return answer


if __name__ == "__main__":
    main()
