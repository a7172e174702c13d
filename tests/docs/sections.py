"""The sections of a recipe, as types say where they stand."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a value of this type may hold, also in a list or a map."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in sections_in(argument)]
