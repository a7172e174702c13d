"""The terminal annotator: prints a subject, reads one key, and goes on to the next subject.

Control characters in completions are escaped. Input that is no terminal (a pipe) is read as characters.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rft_data.core.text import shown
from rft_data.exchange.annotate.session import LEFT, QUIT, RATINGS, RIGHT, SKIP, UNDO, Session
from rft_data.exchange.annotate.subjects import Subject, answer_text, as_text

_LINES = 200
"""Lines printed of one text, at most; the others are counted."""
_ESCAPE = "\x1b"
_KEY_GAP_S = 0.05
"""Longest time in seconds between two bytes of one key; a person's next key comes later."""


def annotate(session: Session, keys: Iterator[str], show: Callable[[str], None]) -> None:
    """Ask until no subject is left, `q` is pressed, or the keys end. Every answer is stored by then."""
    while (subject := session.current()) is not None:
        show(subject_text(subject, shutil.get_terminal_size().columns))
        while True:
            key = next(keys, QUIT)
            if key == QUIT:
                return
            if session.answer(key):
                break
            show(f"'{shown(key)}' means nothing here; {_wanted(subject)}")
    show("nothing is left to annotate")


def subject_text(subject: Subject, width: int) -> str:
    """A subject as text. It has no rewards: they would influence the answer."""
    parts = [("prompt", as_text(subject.prompt))]
    if subject.right is None:
        parts.append(("completion", answer_text(subject.left)))
    else:
        parts += [(LEFT, answer_text(subject.left)), (RIGHT, answer_text(subject.right))]
    lines = [""]
    for name, text in parts:
        lines += [f"--- {name} ".ljust(max(20, width - 1), "-"), *_escaped(text, max(20, width))]
    return "\n".join([*lines, "-" * max(20, width - 1), _wanted(subject)])


def _wanted(subject: Subject) -> str:
    which = f"{RATINGS[0]}-{RATINGS[-1]} rate" if subject.right is None else f"{LEFT} or {RIGHT} is better"
    return f"[{which}, {SKIP} skip, {UNDO} undo, {QUIT} quit]"


def _escaped(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` characters, with characters escaped that are not printable."""
    lines = []
    for line in text.split("\n"):
        plain = shown(line, sys.maxsize)
        lines += [plain[start : start + width] for start in range(0, max(1, len(plain)), width)]
    more = [f"... {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    return lines[:_LINES] + more


@contextmanager
def key_presses(descriptor: int) -> Iterator[Iterator[str]]:
    """Keys from an open file; from a terminal at once and without echo, until its settings are restored."""
    if not os.isatty(descriptor):
        yield _characters(descriptor)
        return
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # Ctrl-C still interrupts
    try:
        yield _keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _characters(descriptor: int) -> Iterator[str]:
    while read := os.read(descriptor, 1):
        character = read.decode("utf-8", "replace")
        if not character.isspace():
            yield character


def _keys(descriptor: int) -> Iterator[str]:
    """Keys of a terminal. A key of several bytes (Page Up: ESC [ 5 ~) is ESC; its other bytes are skipped."""
    for character in _characters(descriptor):
        if character == _ESCAPE:
            _skip_sequence(descriptor)
        yield character


def _skip_sequence(descriptor: int) -> None:
    """Read the bytes after an ESC: of ESC [ ... and ESC O ... up to the final byte, else one byte."""
    long = False
    while select.select([descriptor], [], [], _KEY_GAP_S)[0]:
        read = os.read(descriptor, 1)
        if not long and read in (b"[", b"O"):
            long = True
        elif not read or (not long and read != b"\x1b") or (b"@" <= read <= b"~" and read != b"["):
            return
