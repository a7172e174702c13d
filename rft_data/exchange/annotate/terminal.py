"""The terminal annotator: shows a subject, takes one key, goes on. Model output cannot move the cursor.

Keys come from a terminal one at a time, from anything else (a pipe, a test) as characters of its lines.
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
"""Of one text, at most; the rest is counted."""
_ESCAPE = "\x1b"
_AT_ONCE = 0.05
"""Seconds between the bytes of one key, at most; a person's next key comes later."""


def annotate(session: Session, keys: Iterator[str], show: Callable[[str], None]) -> None:
    """Ask until nothing is left, `q` is pressed or the keys end; what was answered is stored by then."""
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
    """What the person sees; rewards are not shown, for they would lead."""
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
    """A text in lines of at most `width` characters; what is not printable is escaped."""
    lines = []
    for line in text.split("\n"):
        plain = shown(line, sys.maxsize)
        lines += [plain[start : start + width] for start in range(0, max(1, len(plain)), width)]
    more = [f"... {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    return lines[:_LINES] + more


@contextmanager
def key_presses(descriptor: int) -> Iterator[Iterator[str]]:
    """Keys from an open file; a terminal gives each at once, does not show it, and is put back after."""
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
    """Keys of a terminal; one that sends several bytes (Page Up: ESC [ 5 ~) is ESC, not what follows it."""
    for character in _characters(descriptor):
        if character == _ESCAPE:
            _skip_sequence(descriptor)
        yield character


def _skip_sequence(descriptor: int) -> None:
    """Read what belongs to the ESC just read: ESC [ ... or ESC O ... to its final byte, else one byte."""
    long = False
    while select.select([descriptor], [], [], _AT_ONCE)[0]:
        read = os.read(descriptor, 1)
        if not long and read in (b"[", b"O"):
            long = True
        elif not read or (not long and read != b"\x1b") or (b"@" <= read <= b"~" and read != b"["):
            return
