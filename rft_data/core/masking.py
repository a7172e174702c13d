"""Values that came from the environment, as `${env:NAME}` in a recipe, and the one filter that hides them.

Each text that leaves the process passes it: stdout and stderr (`masked_streams`), the log, the run's record,
reasons that are stored. A hidden value is shown as its reference.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rft_data.core.text import escaped

_SHORTEST, _SHORTEST_NUMBER = 4, 8
"""Characters below which a value is not hidden: it could not be told from other text."""
_WORDS = ("true", "false", "null", "none")
_values: dict[str, str] = {}
"""Every value by its reference."""
_hidden: dict[str, str] = {}
"""The reference by every form of the values."""
_pattern: re.Pattern[str] | None = None
_lock = threading.Lock()


def hide(values: Mapping[str, str]) -> None:
    """Hide values from now on. Args: values: by the reference that is shown instead."""
    global _pattern
    with _lock:
        for reference, value in values.items():
            if _values.get(reference) == value:
                continue
            _values[reference] = value
            _hidden.update(dict.fromkeys(_forms(value), reference))
        if _hidden:
            longest_first = sorted(_hidden, key=len, reverse=True)
            _pattern = re.compile("|".join(map(re.escape, longest_first)))


def hidden_values() -> Mapping[str, str]:
    """The hidden values by their references, for another process of the run."""
    return dict(_values)


def masked(text: str) -> str:
    """The text with the references in place of hidden values."""
    return text if _pattern is None else _pattern.sub(lambda found: _hidden[found.group()], text)


class MaskedStream:
    """A text stream whose texts are masked; it has no `buffer`, through which they would not be."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, masked."""
        self._stream.write(masked(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


def mask_streams() -> None:
    """Mask what this process writes to stdout and stderr from now on, tracebacks and logging too."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, MaskedStream):
            setattr(sys, name, MaskedStream(stream))


@contextmanager
def masked_streams() -> Iterator[None]:
    """`mask_streams` for a block."""
    before = sys.stdout, sys.stderr
    mask_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _forms(value: str) -> Iterator[str]:
    """The value and its lines, as they are and as JSON, repr and terminals show them."""
    number = re.fullmatch(r"[\d.eE+-]+", value) is not None
    for line in {value, value.strip(), value.strip().strip("'\""), *value.splitlines()}:
        if len(line) >= (_SHORTEST_NUMBER if number else _SHORTEST) and line.lower() not in _WORDS:
            yield from (line, json.dumps(line)[1:-1], repr(line)[1:-1], escaped(line))
            yield json.dumps(line, ensure_ascii=False)[1:-1]
