"""A registered function (a loss, a batch operator) by name, with the arguments that a recipe gives it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from rft_data.errors import RecipeError
from rft_data.lookup import lookup, suggest


class Registered(Protocol):
    """What a registry holds: a dataclass with the function and what is known of it."""

    @property
    def function(self) -> Callable[..., Any]:
        """Takes the context or state, then keyword arguments."""
        ...


R = TypeVar("R", bound=Registered)


def bound(use: str, args: Mapping[str, Any], table: Mapping[str, R], kind: str) -> R:
    """The entry `use` of `table`, or what the import path `use` names, its function bound to `args`.

    Raises: UnknownComponentError for an unknown name; RecipeError for arguments that it does not take,
        lacks, or refuses (a function may have a `check` attribute, called with all its arguments, that
        raises ValueError).
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
    try:
        getattr(entry.function, "check", _unchecked)(**given)
    except (ValueError, TypeError) as err:
        raise RecipeError(f"{kind} '{use}': {err}") from err
    return replace(entry, function=functools.partial(entry.function, **given))  # type: ignore[type-var]


def _unchecked(**_: Any) -> None:
    """For functions that take any values."""
