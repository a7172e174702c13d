"""How values are written on the page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime

from markupsafe import Markup, escape

from rft_data.core.text import shown

_LONGEST = 100_000
"""Characters of one text on a page; whole texts are in its JSON."""


def number(value: float | None) -> str:
    """A number in four digits; in words where there is none."""
    if value is None or not math.isfinite(value):
        return "none" if value is None else str(value)
    return f"{value:.4g}"


def finished(value: object) -> object:
    """Every value that a template writes passes here: no text of a model acts on the page."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def visible(text: str) -> str:
    """A text with its lines, in which control and direction characters are seen and do nothing."""
    if len(text) <= _LONGEST and text.isprintable():
        return text
    cut = "" if len(text) <= _LONGEST else f"\n... {len(text) - _LONGEST:,} characters more"
    return "".join(c if c.isprintable() or c == "\n" else _seen(c) for c in text[:_LONGEST]) + cut


def exact(text: str) -> Markup:
    """A text for a form, character by character: what comes back must be what was given."""
    return escape(text)


def short(text: str | None) -> str:
    """The beginning of a text, on one line."""
    return shown(text or "", 160)


def moment(value: datetime | None) -> str:
    """A time in UTC, to the second."""
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def parts(text: str | None) -> list[tuple[str, str]]:
    """Name and value of each part of a stored reward."""
    found = json.loads(text or "{}")
    return [
        (str(name), number(value) if isinstance(value, float) else str(value))
        for name, value in found.items()
    ]


def quoted(text: str) -> str:
    """A text as a value in a filter."""
    return "'" + text.replace("'", "''") + "'"


def _seen(character: str) -> str:
    return " " if character == "\t" else f"\\u{ord(character):04x}"


FILTERS: Mapping[str, Callable[..., object]] = {
    "number": number,
    "short": short,
    "exact": exact,
    "moment": moment,
    "parts": parts,
    "quoted": quoted,
}
"""Filters that the templates use."""
