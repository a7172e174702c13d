"""Reads scores from a judge's replies, by a pattern or from JSON, and scales them to [0, 1]."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

DEFAULT_PATTERN = r"(?i)score(?:\s*[(\[][^()\[\]]*[)\]])?[^\w(\[]{0,8}?(?P<score>-?\d+(?:\.\d+)?)"
_SHOWN = 120
_DECODER = json.JSONDecoder()
_LONGEST_JSON = 20_000
"""Characters of a reply in which JSON is looked for."""


class ScoreReader:
    """Reads the last score of a reply."""

    def __init__(
        self,
        pattern: str | None = None,
        json_key: str | None = None,
        low: float = 0.0,
        high: float = 10.0,
    ) -> None:
        """Patterns are RE2's: linear in time whatever a model writes, without look-around.

        Args:
            pattern: with a group `(?P<score>...)`, other groups as `(?:...)`; its last match counts.
            json_key: instead: the number under this key of the reply's last JSON object that has it.
            low, high: the ends of the judge's scale, which become 0 and 1; a score outside is none.
        Raises: ValueError for both ways at once, a pattern without the group, or an empty scale.
        """
        if pattern is not None and json_key is not None:
            raise ValueError("score has a pattern and a json_key; wanted at most one of the two")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(
                f"score has the scale from {low} to {high}; wanted two finite numbers, low < high"
            )
        self._json_key = json_key
        self._low = low
        self._high = high
        # The greedy prefix makes the last of several matches count.
        self._pattern = f"(?s:.*)(?:{DEFAULT_PATTERN if pattern is None else pattern})"
        fields = pc.extract_regex(pa.array([""]), self._pattern).type
        if fields.get_field_index("score") < 0:
            raise ValueError(f"score has the pattern {pattern!r}; wanted one with a group (?P<score>...)")

    def read(self, replies: Sequence[str]) -> list[float | str]:
        """For each reply the score in [0, 1], or why there is none."""
        if self._json_key is None:
            found = pc.extract_regex(pa.array(replies, pa.string()), self._pattern).to_pylist()
            values = [None if groups is None else groups["score"] for groups in found]
        else:
            values = [_under_key(reply, self._json_key) for reply in replies]
        return [self._scaled(value, reply) for value, reply in zip(values, replies, strict=True)]

    def _scaled(self, value: Any, reply: str) -> float | str:
        try:
            number = float(value)
        except (TypeError, ValueError):
            return f"the judge's reply holds no score: {reply[-_SHOWN:]!r}"
        if not self._low <= number <= self._high:
            return f"the judge's score {number:g} is not in [{self._low:g}, {self._high:g}]"
        return (number - self._low) / (self._high - self._low)


def _under_key(reply: str, key: str) -> object:
    """The value under `key` in the last JSON object of a reply that has it; None when none has."""
    found = None
    for value in json_objects(reply):
        if key in value and not isinstance(value[key], bool):
            found = value[key]
    return found


def json_objects(reply: str) -> Iterator[Mapping[str, object]]:
    """The JSON objects of a reply, in order; objects within objects are not looked at."""
    place = reply.find("{")
    while 0 <= place < _LONGEST_JSON:
        try:
            value, end = _DECODER.raw_decode(reply, place)
        except (ValueError, RecursionError):
            value, end = None, place + 1
        if isinstance(value, dict):
            yield value
        place = reply.find("{", end)
