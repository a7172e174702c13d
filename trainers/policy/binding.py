"""Registered functions (losses, batch operators) by name, with the arguments that a recipe gives."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import lookup, suggest


class Registered(Protocol):
    """An entry of a registry: a dataclass with the function and facts about it."""

    @property
    def function(self) -> Callable[..., object]:
        """Takes the context or state, then keyword arguments."""
        ...


R = TypeVar("R", bound=Registered)


def bound(use: str, args: Mapping[str, object], table: Mapping[str, R], kind: str) -> R:
    """The entry `use` of `table`, or the object that the import path `use` names, its function bound to
    `args`.

    Raises: UnknownComponentError for an unknown name; RecipeError for arguments that the function does not
        take, for missing ones, and for values that do not have the annotated type or range.
    """
    entry = lookup(use, table, kind)
    _, *parameters = inspect.signature(entry.function).parameters.values()
    known = [parameter.name for parameter in parameters]
    if unknown := [name for name in args if name not in known]:
        hints = "; ".join(f"'{name}'{suggest(name, known)}" for name in unknown)
        raise RecipeError(f"{kind} '{use}' has no argument {hints}. It takes {', '.join(known) or 'none'}.")
    given = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty} | dict(args)
    if missing := [name for name in known if name not in given]:
        raise RecipeError(f"{kind} '{use}' needs the argument {', '.join(missing)}; give it in its 'args'.")
    if mistakes := _wrong_values(entry.function, args):
        raise RecipeError(f"{kind} '{use}' does not accept its arguments: {'; '.join(mistakes)}.")
    return replace(entry, function=functools.partial(entry.function, **given))  # type: ignore[type-var]


def _wrong_values(function: Callable[..., object], args: Mapping[str, object]) -> list[str]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # a user's function, annotated with a name that only a type checker imports
        return []
    return [
        f"{name}: {mistake}, got {value!r}"
        for name, value in args.items()
        if (mistake := _type_mistake(value, hints.get(name, Any)))
    ]


def _type_mistake(value: object, kind: Any) -> str | None:
    # Strict JSON rules: "1" is not a number, but 1 is accepted for a float.
    adapter: TypeAdapter[object] = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        adapter.validate_json(json.dumps(value, allow_nan=False), strict=True)
    except ValidationError as err:
        return str(err.errors()[0]["msg"]).removeprefix("Value error, ")
    except (TypeError, ValueError):
        return "must be a JSON value (text, finite number, true or false, null, list or mapping)"
    return None
