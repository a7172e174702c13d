"""The base class of every section of a recipe."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationInfo

Loc: TypeAlias = tuple[str | int, ...]
"""The place of a value in a recipe: keys of maps and numbers of list entries, from the top."""


CHECK_ONLY = {"check_only": True}
"""Context of a validation that imports nothing of the user's; the recipe lacks what that would set."""


def check_only(info: ValidationInfo) -> bool:
    """Whether a validation has the context CHECK_ONLY."""
    return info.context == CHECK_ONLY


class Section(BaseModel):
    """Unknown keys are errors; a section never changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
