"""Checks of selector arguments; each raises a ValueError that names the bad argument.

They run before a selector reads its tasks, so that a recipe can be checked without tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rft_data.tasks.selectors.interfaces import NoTasksError, SelectorMaker


def number(name: str, value: object) -> float:
    """Raises: ValueError unless it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"'{name}' is {value!r}; give a number")
    return float(value)


def positive(name: str, value: Any) -> float:
    """Raises: ValueError unless it is a number above 0."""
    if number(name, value) <= 0:
        raise ValueError(f"'{name}' is {value!r}; give a number above 0")
    return float(value)


def share(name: str, value: object, *, zero: bool = True, one: bool = True) -> float:
    """Raises: ValueError unless it is a number in [0, 1]; `zero` and `one`: whether 0 and 1 are allowed."""
    found = number(name, value)
    if not 0 <= found <= 1 or (found == 0 and not zero) or (found == 1 and not one):
        interval = ("[" if zero else "(") + "0, 1" + ("]" if one else ")")
        raise ValueError(f"'{name}' is {value!r}; give a number in {interval}")
    return found


def count(name: str, value: object) -> int:
    """Raises: ValueError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"'{name}' is {value!r}; give a whole number of at least 1")
    return value


def checked_choice(name: str, value: object, known: Collection[str]) -> str:
    """Raises: ValueError unless it is one of `known`."""
    if value not in known:
        raise ValueError(f"'{name}' is {value!r}; one of {', '.join(sorted(known))} is needed")
    return str(value)


def component(name: str, value: object, make: SelectorMaker) -> tuple[str, Mapping[str, object]]:
    """Name and arguments of a selector inside another selector.

    Raises: ValueError unless it is a map `{use, args}`.
    """
    if (
        not isinstance(value, Mapping)
        or not isinstance(value.get("use"), str)
        or set(value) - {"use", "args"}
    ):
        raise ValueError(f"'{name}' is {value!r}; give {{use: a selector, args: its arguments}}")
    args = value.get("args") or {}
    if not isinstance(args, Mapping):
        raise ValueError(f"'{name}.args' is {args!r}; give a map of arguments")
    check_made(value["use"], args, make)
    return value["use"], args


def check_made(use: str, args: Mapping[str, object], make: SelectorMaker) -> None:
    """Check name and arguments without tasks; a class of your own is not imported and not checked.

    Raises: as `make`.
    """
    if ":" in use:
        return
    try:
        make(use, args, (), 0)
    except NoTasksError:
        return
