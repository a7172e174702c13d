"""Attributes of spans: the values of OTLP/JSON, and dotted keys as a tree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject

_NANO = 1e9
_PLAIN = ("stringValue", "boolValue", "bytesValue")


def otlp_attributes(listed: Json) -> dict[str, Json]:
    """The attributes of a list of `{"key", "value"}`.

    Raises: RowError for a value that is not of OTLP/JSON.
    """
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise RowError(f"attributes hold {type(listed).__name__}; OTLP/JSON has a list of keys and values")
    made: dict[str, Json] = {}
    for item in listed:
        if not isinstance(item, Mapping) or not isinstance(item.get("key"), str):
            raise RowError("an attribute has no key")
        made[str(item["key"])] = any_value(item.get("value"))
    return made


def any_value(value: Json) -> Json:
    """A value of OTLP/JSON. Raises: RowError for another."""
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping) or len(value) != 1:
        raise RowError(
            "an attribute's value is not of OTLP/JSON: one of stringValue, intValue, ... is needed"
        )
    kind, item = next(iter(value.items()))
    if kind in _PLAIN:
        return item
    if kind in ("intValue", "doubleValue"):
        return _number(item, whole=kind == "intValue")
    inner = item.get("values") if isinstance(item, Mapping) else None
    if kind == "arrayValue":
        return [any_value(one) for one in inner] if isinstance(inner, list) else []
    if kind == "kvlistValue":
        return otlp_attributes(inner)
    raise RowError(f"an attribute has a value of kind '{kind}', which OTLP/JSON does not have")


def _number(item: Json, *, whole: bool) -> Json:
    try:
        return int(str(item)) if whole else float(str(item))
    except ValueError as err:
        raise RowError(f"an attribute's number is {item!r}") from err


class _Branch(dict[str, Json]):
    """An object that dotted keys made. Objects that were values stay as they were logged."""


def tree(attributes: Mapping[str, Json]) -> JsonObject:
    """Dotted keys as nested objects: `a.0.b` is `{"a": [{"b": ...}]}`.

    Lists under `llm.` may hold objects with dotted keys themselves, as tables of Phoenix do. Where a key has
    a value and keys below it, those below count. NaN, with which tables mark what is missing, is left out.
    """
    return _listed_inside(_branch(attributes))


def _branch(attributes: Mapping[str, Json]) -> _Branch:
    made = _Branch()
    for key, value in sorted(attributes.items(), key=lambda item: item[0].count(".")):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        _put(made, key.split("."), _unflattened(value) if key.startswith("llm.") else value)
    return made


def _unflattened(value: Json) -> Json:
    if isinstance(value, Mapping):
        return _Branch({key: _unflattened(item) for key, item in _branch(value).items()})
    if isinstance(value, list):
        return [_unflattened(item) for item in value]
    return value


def _put(made: _Branch, path: list[str], value: Json) -> None:
    for name in path[:-1]:
        inner = made.get(name)
        if not isinstance(inner, _Branch):
            inner = _Branch()
            made[name] = inner
        made = inner
    made[path[-1]] = value


def _listed_inside(branch: _Branch) -> dict[str, Json]:
    return {key: _listed(item) for key, item in branch.items()}


def _listed(value: Json) -> Json:
    """A branch whose keys are all numbers as a list, in the order of the numbers."""
    if isinstance(value, list):
        return [_listed(item) for item in value]
    if not isinstance(value, _Branch):
        return value
    inner = _listed_inside(value)
    if inner and all(key.isdecimal() for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def inside(value: Json, *names: str) -> Json:
    """Value under nested keys; None where one of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def list_inside(value: Json, *names: str) -> list[Json]:
    """The list that lies under nested keys; empty where none does."""
    found = inside(value, *names)
    return found if isinstance(found, list) else []


def exported(groups: list[Json], scopes: Sequence[str], records: str) -> Iterator[Json]:
    """Contents of an export request's groups, group after group and scope after scope.

    Args:
        scopes: names of a group's list of scopes; the first that is there is read.
        records: name of a scope's list of spans or log records.
    """
    for group in groups:
        for scope in list_inside(first(inside(group, name) for name in scopes)):
            yield from list_inside(scope, records)


def text(value: Json) -> str:
    """A value as text; "" for None."""
    return "" if value is None else str(value)


def first(values: Iterable[Json]) -> Json:
    """The first that is there, else None."""
    return next((value for value in values if value is not None), None)


def seconds(value: Json) -> float:
    """Seconds since 1970 of ISO text (UTC where it names no zone) or a number of seconds; 0 for None.

    Raises: RowError for anything else.
    """
    if value in (None, ""):
        return 0.0
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC).timestamp()
        found = datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError) as err:
        raise RowError(f"{str(value)[:40]!r} is no time in seconds and no ISO text") from err
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def nanoseconds(value: Json) -> float:
    """Seconds of a time in nanoseconds, as number or text; 0 for none. Raises: RowError for anything else."""
    try:
        return seconds(int(str(value or 0)) / _NANO)
    except (ValueError, OverflowError, RowError) as err:
        raise RowError(f"it has the time {value!r}; nanoseconds are needed") from err


def session(attributes: JsonObject) -> str:
    """The id that the traces of one conversation share; empty where there is none."""
    return text(
        first([inside(attributes, "session", "id"), inside(attributes, "gen_ai", "conversation", "id")])
    )
