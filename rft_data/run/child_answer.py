"""A child process that does one piece of work for its parent: a line of JSON in, a line out, and its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rft_data.core.children import connected, limit_memory
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.masking import mask_streams, masked

_MEMORY_GIB = 4


def answer(work: Callable[[Any], dict[str, object]]) -> None:
    """Answer with `{"found": ...}`, or `{"error": text, "mistakes": [...]}` where the work cannot be done.

    Values that came from the environment leave this process as references to it.
    """
    channel = connected()
    mask_streams()
    request = json.loads(channel.makefile("rb").readline())
    limit_memory(_MEMORY_GIB << 30)
    found: dict[str, object]
    try:
        found = {"found": work(request)}
    except RecipeError as err:
        found = {"error": str(err), "mistakes": list(err.mistakes)}
    except RftError as err:
        found = {"error": str(err), "mistakes": []}
    except MemoryError:
        found = {"error": f"this needs more than {_MEMORY_GIB} GiB; ask for less.", "mistakes": []}
    channel.sendall(masked(json.dumps(found)).encode() + b"\n")
