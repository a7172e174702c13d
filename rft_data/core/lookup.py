"""Finds components by name: in a dict of built-ins, or by import path `package.module:Name`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rft_data.core.errors import MissingExtraError, UnknownComponentError

T = TypeVar("T")

MOVED: Mapping[str, str] = {"ops.rephrasing:rephrased": "ops.tasks.rephrasing:rephrased"}
"""Import paths in recipes of older versions, and the present paths."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `" did you mean 'x'?"` when a known name is close, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" did you mean '{close[0]}'?" if close else ""


def lookup(name: str, table: Mapping[str, T], kind: str) -> T | Any:
    """Return the built-in called `name`, or import `package.module:Name`.

    Raises: UnknownComponentError if there is no such built-in, module or attribute.
    """
    if name not in table and ":" in name:
        return load(name, kind)
    return built_in(name, table, kind, " Your own: 'package.module:Class'.")


def is_import_path(name: str) -> bool:
    """Whether a name has the form `package.module:Name`; nothing is imported."""
    module, _, attribute = name.partition(":")
    return all(part.isidentifier() for part in [*module.split("."), attribute])


def built_in(name: str, table: Mapping[str, T], kind: str, hint: str = "") -> T:
    """Return the built-in called `name`.

    Args: hint: end of the message about an unknown name.
    Raises: UnknownComponentError if there is none.
    """
    if name in table:
        return table[name]
    raise UnknownComponentError(
        f"{kind} '{name}' is not known;{suggest(name, table)} Built in: {', '.join(sorted(table))}.{hint}"
    )


def load(path: str, kind: str) -> Any:
    """Import `package.module:Name`; an error raised inside the module passes through unchanged."""
    module_name, _, attribute = MOVED.get(path, path).partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as err:
        if err.name is not None and not module_name.startswith(err.name):
            raise
        raise UnknownComponentError(
            f"{kind} '{path}': there is no module '{err.name}'; write 'package.module:Class' "
            "and make sure the package is installed or on PYTHONPATH."
        ) from err
    if not hasattr(module, attribute):
        raise UnknownComponentError(
            f"{kind} '{path}': module '{module_name}' has no '{attribute}';{suggest(attribute, dir(module))}"
        )
    return getattr(module, attribute)


def need(module: str, extra: str, why: str) -> Any:
    """Import an optional dependency; the error names the extra to install.

    Raises: MissingExtraError if the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        raise MissingExtraError(
            f"{why} needs the package '{err.name}', which is not installed; "
            f"install the extra: pip install 'rft-data[{extra}]' (or `make setup` in a checkout)."
        ) from err
