"""The section of a recipe about files whose rows are imported before the run begins."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest
from rft_data.exchange.formats.registry import FORMATS
from rft_data.recipe.import_columns import ImportColumns
from rft_data.recipe.row_sources import RowSource
from rft_data.recipe.section import Section

Column = Annotated[str | None, Field(exclude_if=lambda given: given is None)]
"""A column; a saved recipe without has no such key, so that its hash stays as it was."""


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
    prompt: Column = None
    """Column that is the prompt, where the columns are those of no format; read as a taskset's `prompt`: text
    is what a user says, dots lead into nested columns, braces make a template. Other columns are metadata."""
    completion: Column = None
    """Column, or template, of the answer to `prompt`: text becomes a message of the assistant."""
    chosen: Column = None
    """Column, or template, of the better answer of a pair; with `rejected`, and `prompt` if they lack it."""
    rejected: Column = None
    """Column, or template, of the worse answer of a pair."""
    label: Column = None
    """Column that says whether `completion` is desirable (true or false), for KTO."""

    @model_validator(mode="after")
    def _one_source(self) -> Import:
        if (self.path is None) == (self.source is None):
            raise ValueError("give exactly one of 'path' and 'source'")
        if self.source is not None and self.limit is not None:
            raise ValueError("'limit' belongs to 'path'; write it inside 'source'")
        return self

    @model_validator(mode="after")
    def _columns_or_format(self) -> Import:
        try:
            named = self.columns.named
        except RecipeError as err:
            raise ValueError(str(err)) from err
        if named and self.format is not None:
            raise ValueError(
                f"'format' says what the columns are, and {', '.join(map(repr, named))} name them; remove one"
            )
        return self

    @property
    def columns(self) -> ImportColumns:
        """The columns that it names."""
        return ImportColumns(self.prompt, self.completion, self.chosen, self.rejected, self.label)

    @property
    def key(self) -> str:
        """The one of the two that is given."""
        return "path" if self.source is None else "source"

    @field_validator("format")
    @classmethod
    def _known(cls, given: str | None) -> str | None:
        readable = [name for name, made in FORMATS.items() if made.read is not None]
        if given is not None and given not in readable:
            raise ValueError(f"there is no format '{given}' to read;{suggest(given, readable)}")
        return given
