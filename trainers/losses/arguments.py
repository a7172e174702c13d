"""The arguments that losses take: their types with their bounds, and the check of a recipe's values.

A signature is the only declaration: what it does not name is unknown, what its annotation does not allow
is refused. Nothing here knows a loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rft_data.errors import RecipeError
from rft_data.lookup import suggest
from rft_data.rows import canonical_json

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
"""A number in [0, 1]."""
UpToOne = Annotated[float, Field(gt=0, le=1)]
"""A number in (0, 1]; how far below 1 a ratio may be."""
AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0)]


def check_arguments(use: str, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Compare `args` with the signature of a loss, whose first parameter is the context.

    Raises: RecipeError with every mistake: an unknown or missing argument, a value of the wrong type or
        out of bounds.
    """
    mistakes = list(_mistakes(function, args))
    if mistakes:
        raise RecipeError(f"loss '{use}' does not accept its args: {' '.join(mistakes)}")


def _mistakes(function: Callable[..., Any], args: Mapping[str, Any]) -> Iterator[str]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    named = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    hints = _hints(function)
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in args:
            yield f"'{name}' is missing."
    for name, value in args.items():
        if name in named:
            wrong = _wrong_value(value, hints.get(name, Any))
            if wrong:
                yield f"'{name}' is {value!r}: {wrong}."
        elif not takes_any:
            yield f"'{name}' is not known;{suggest(str(name), named)} It takes {', '.join(named) or 'none'}."


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters; none where a user's annotations cannot be resolved."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        return {}


def _wrong_value(value: Any, kind: Any) -> str | None:
    # Strict JSON rules: "0.2" is not a number, but a list does for a tuple.
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        adapter.validate_json(canonical_json(value), strict=True)
    except ValidationError as err:
        return str(err.errors()[0]["msg"])
    except (TypeError, ValueError):
        return "must be a finite number, text, true, false, null, a list or a mapping"
    return None
