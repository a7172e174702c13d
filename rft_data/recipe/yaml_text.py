"""YAML text, parsed only when it is small enough: 2 kB of aliases can stand for gigabytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, Event, NodeEvent

from rft_data.core.errors import RecipeError

MAX_DEPTH = 64
"""Most lists and maps inside each other."""
_MAX_VALUES = 20_000
"""Most values, with each alias counted as all that it stands for; a large recipe has a few hundred."""


def parse_yaml(text: str, place: str, *, keep_lines: bool = False) -> object:
    """The value of YAML text.

    Args:
        place: what the text is, for errors.
        keep_lines: return ruamel's maps and lists, which know their lines and columns.
    Raises: RecipeError when it is not valid YAML, has duplicate keys, or is nested or expanded too far.
    """
    try:
        _Size(place).check(text)
        return YAML(typ="rt" if keep_lines else "safe", pure=True).load(text)
    except MarkedYAMLError as err:
        mark = err.problem_mark
        where = f"{place}:{mark.line + 1}:{mark.column + 1}" if mark else place
        raise RecipeError(f"{where} is not valid YAML: {err.problem}") from err
    except YAMLError as err:
        raise RecipeError(f"{place} is not valid YAML: {err}") from err


def as_text(value: str) -> str:
    """A text as a value of a map, in quotes where YAML would read something else (2026, true, a: b)."""
    try:
        plain = parse_yaml(f"key: {value}", "a value") == {"key": value}
    except RecipeError:
        plain = False
    return value if plain else json.dumps(value)


def flow(value: Mapping[str, object]) -> str:
    """A map on one line."""
    inside = ", ".join(
        f"{key}: {flow(one) if isinstance(one, dict) else one if _is_plain(one) else json.dumps(one)}"
        for key, one in value.items()
    )
    return f"{{{inside}}}"


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[A-Za-z]\w*", value) is not None and as_text(value) == value
    return isinstance(value, int)


class _Size:
    """Counts the values of a text and how deep they lie, from its events, before any of them is made."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._values = 0
        self._open: list[tuple[str | None, int]] = []
        self._anchors: dict[str, int | None] = {}
        """How many values each anchor stands for; None while it is open."""

    def check(self, text: str) -> None:
        """Raises: RecipeError at the place where there are too many, or they lie too deep."""
        for event in YAML(typ="safe", pure=True).parse(text):
            if isinstance(event, AliasEvent):
                self._alias(event)
            elif isinstance(event, NodeEvent):
                self._values += 1
                if isinstance(event, CollectionStartEvent):
                    self._open.append((event.anchor, self._values))
                if event.anchor is not None:
                    self._anchors[event.anchor] = None if isinstance(event, CollectionStartEvent) else 1
            elif isinstance(event, CollectionEndEvent):
                anchor, before = self._open.pop()
                if anchor is not None:
                    self._anchors[anchor] = self._values - before + 1
            if len(self._open) > MAX_DEPTH:
                raise self._refused(event, f"more than {MAX_DEPTH} lists and maps lie inside each other")
            if self._values > _MAX_VALUES:
                raise self._refused(event, f"it stands for more than {_MAX_VALUES} values")

    def _alias(self, event: AliasEvent) -> None:
        size = self._anchors.get(event.anchor, 1)  # the parser itself refuses an unknown one
        if size is None:
            raise self._refused(event, f"'*{event.anchor}' lies inside itself")
        self._values += size

    def _refused(self, event: Event, why: str) -> RecipeError:
        mark = event.start_mark
        return RecipeError(f"{self._place}:{mark.line + 1}:{mark.column + 1}: {why}; simplify the recipe.")
