"""Does the work of one request in a child process.

A child can be killed, and the memory that it uses is not the server's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from threading import BoundedSemaphore
from typing import Any

from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import BusyError, RecipeError, RftError, StalledError

_AT_ONCE, _PATIENCE_S = 2, 5.0
_MOST_BYTES = 16 << 20
_LINES = 20
_free = BoundedSemaphore(_AT_ONCE)


def ask(module: str, request: Mapping[str, object], *, deadline_s: float, what: str) -> dict[str, Any]:
    """Start `python -m module`, give it a request as a line of JSON, and return what it found.

    The child answers with a line: `{"found": {...}}`, or `{"error": text, "mistakes": [...]}`.
    Args: what: the work in words, for messages.
    Raises: BusyError while two other requests are worked on; RecipeError for what the child says is wrong,
        with its mistakes; StalledError past the deadline; RftError when the child died.
    """
    if not _free.acquire(timeout=_PATIENCE_S):
        raise BusyError(f"{_AT_ONCE} other requests are being worked on; send this one again in a moment.")
    try:
        answer = _answer(module, request, deadline_s, what)
    finally:
        _free.release()
    if "error" in answer:
        error = RecipeError(answer["error"])
        error.mistakes = answer["mistakes"]
        raise error
    found: dict[str, Any] = answer["found"]
    return found


def _answer(module: str, request: Mapping[str, object], deadline_s: float, what: str) -> dict[str, Any]:
    said: list[str] = []
    child = Child(module, on_line=lambda line: said.append(line) if len(said) < _LINES else None)
    found = bytearray()
    end = time.monotonic() + deadline_s
    try:
        child.send(json.dumps(request).encode() + b"\n")
        while not found.endswith(b"\n") and (part := child.receive(end)):
            found += part
            if len(found) > _MOST_BYTES:
                raise RftError(f"{what} has an answer of more than {_MOST_BYTES} bytes; ask for less.")
    except TimeoutError as late:
        raise StalledError(
            f"{what} did not end within {deadline_s:g} s and was killed; ask for less of it."
        ) from late
    finally:
        status = child.close()
    if not found.endswith(b"\n"):
        words = " ".join(said[-3:])
        raise RftError(f"the process for {what} ended with {how_it_ended(status)} and no answer. {words}")
    answer: dict[str, Any] = json.loads(found)
    return answer
