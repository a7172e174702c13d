"""How log lines look: hidden values masked, and what is not printable escaped."""

from __future__ import annotations

import logging
import sys

from rft_data.core.masking import masked
from rft_data.core.text import for_terminal


class PlainFormatter(logging.Formatter):
    """A formatter of lines that hold no hidden value and cannot act on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, and its traceback."""
        return for_terminal(masked(super().format(record)))


class StderrHandler(logging.Handler):
    """Writes lines to what `sys.stderr` is now: a progress bar takes its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except OSError:
            self.handleError(record)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Have this process's log lines from `level` on written to stderr, unless they go somewhere already."""
    handler = StderrHandler()
    handler.setLevel(level)
    handler.setFormatter(PlainFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def say_line(line: str, before: str = "") -> None:
    """Write a line of another process to stderr; of a progress bar, only what a terminal would show last."""
    last = line.rstrip("\r").rpartition("\r")[2]
    sys.stderr.write(f"{before}{for_terminal(masked(last))}\n")
    sys.stderr.flush()
