"""Types for values that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
"""One JSON value, of any depth."""
JsonObject: TypeAlias = Mapping[str, Json]
"""A JSON object that is only read."""
