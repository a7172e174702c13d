"""The section of a recipe about files whose rows are imported before the run begins."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from rft_data.core.lookup import suggest
from rft_data.exchange.formats.registry import FORMATS
from rft_data.recipe.row_sources import RowSource
from rft_data.recipe.section import Section


class Import(Section):
    """A source that the run imports into its buffer when it first starts, as `rft buffer import` does."""

    path: str | None = None
    """A file, a dataset's folder (`FOLDER:SPLIT`), `hf://org/name:split@revision` or
    `modelscope://owner/name:split@revision`; see docs/formats.md. Or give `source`."""
    source: RowSource | None = Field(default=None, exclude_if=lambda given: given is None)
    """The same sources as those of tasks, with `where`, `shuffle` and `limit`, or a function of your own."""
    taskset: str | None = None
    """Taskset of its rows, for example of one with source `stored`; left out: the file's name."""
    format: str | None = None
    """The format of its columns, for example `trl-preference`; left out: found from the columns."""
    split: Literal["train", "heldout"] = "train"
    """Split of the tasks that it holds."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many rows of `path`; left out: all."""

    @model_validator(mode="after")
    def _one_source(self) -> Import:
        if (self.path is None) == (self.source is None):
            raise ValueError("give exactly one of 'path' and 'source'")
        if self.source is not None and self.limit is not None:
            raise ValueError("'limit' belongs to 'path'; write it inside 'source'")
        return self

    @property
    def key(self) -> str:
        """Which of the two is given."""
        return "path" if self.source is None else "source"

    @field_validator("format")
    @classmethod
    def _known(cls, given: str | None) -> str | None:
        readable = [name for name, made in FORMATS.items() if made.read is not None]
        if given is not None and given not in readable:
            raise ValueError(f"there is no format '{given}' to read;{suggest(given, readable)}")
        return given
