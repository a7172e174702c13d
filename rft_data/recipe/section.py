"""The base class of every section of a recipe."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

Loc: TypeAlias = tuple[str | int, ...]
"""The place of a value in a recipe: keys of maps and numbers of list entries, from the top."""


class Section(BaseModel):
    """Unknown keys are errors; a section never changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
