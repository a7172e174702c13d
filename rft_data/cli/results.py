"""stdout for results alone: while a command runs, what libraries and a user's code print goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from typing import Any, TextIO, cast

from rft_data.core.masking import MaskedStream

_STDOUT, _STDERR = 1, 2
_aside: list[TextIO] = []
"""The stream of results, while a command runs."""


def results() -> TextIO:
    """Stream to which results are written."""
    return _aside[-1] if _aside else sys.stdout


@contextmanager
def results_alone() -> Iterator[None]:
    """Keep stdout for `results` during a block: C code and processes that are started in it have stderr."""
    if _aside:
        yield
        return
    before = sys.stdout
    kept = _kept_descriptor(before)
    if kept is not None:
        text = open(kept, "w", encoding=before.encoding, errors=before.errors)  # noqa: SIM115 - closed below
        _aside.append(cast("TextIO", MaskedStream(text)))
    else:
        _aside.append(before)
    sys.stdout = cast("TextIO", _Stderr())
    try:
        yield
    finally:
        sys.stdout = before
        _aside.pop()
        if kept is not None:
            os.dup2(kept, _STDOUT)
            with suppress(OSError):  # whoever read it is gone
                text.close()


def _kept_descriptor(stream: TextIO) -> int | None:
    """A copy of stdout's descriptor, which itself leads to stderr from now on; None where a test has it."""
    try:
        if stream.fileno() != _STDOUT:
            return None
        stream.flush()
        kept = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
    except (OSError, UnsupportedOperation):  # closed, or none
        return None
    return kept


class _Stderr:
    """The present `sys.stderr`: a progress bar takes its place for a while."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)
