"""What every section of a recipe is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are errors; a section never changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
