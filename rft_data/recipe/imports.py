"""The section of a recipe about files whose rows are imported before the run begins."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rft_data.core.lookup import suggest
from rft_data.exchange.formats.registry import FORMATS
from rft_data.recipe.section import Section


class Import(Section):
    """A source that the run imports into its buffer when it first starts, as `rft buffer import` does."""

    path: str
    """A file, a dataset's folder (`FOLDER:SPLIT`) or `hf://org/name:split@revision`; see docs/formats.md."""
    taskset: str | None = None
    """Taskset of its rows, for example of one with source `stored`; left out: the file's name."""
    format: str | None = None
    """The format of its columns, for example `trl-preference`; left out: found from the columns."""
    split: Literal["train", "heldout"] = "train"
    """Split of the tasks that it holds."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many rows; left out: all."""

    @field_validator("format")
    @classmethod
    def _known(cls, given: str | None) -> str | None:
        readable = [name for name, made in FORMATS.items() if made.read is not None]
        if given is not None and given not in readable:
            raise ValueError(f"there is no format '{given}' to read;{suggest(given, readable)}")
        return given
