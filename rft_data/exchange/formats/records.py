"""A format: how a row of a file becomes rows of a buffer, and how a row of a buffer is written.

Rows of a buffer are `Task`, `Experience`, `PreferencePair` and `Feedback`, of `rows`. Their ids are content
hashes, so importing the same row again makes the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict, Unpack

import pyarrow as pa

from rft_data.core.canonical import content_id
from rft_data.core.chat import completion_text
from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.core.rows import Experience, Feedback, Message, PreferencePair, Task
from rft_data.core.words import RowSource, Split
from rft_data.exchange.formats.jsonlines import Found

RawRow: TypeAlias = Mapping[str, object]
"""One row as a file or a table holds it: column name to value, bytes and times among them."""
Row: TypeAlias = dict[str, Json]
"""One row of a file: column name to JSON value."""

RESERVED = "rft:"
"""Prefix of metadata keys that only formats set: a file's own are dropped, and no file gets them."""
PLAIN = "rft:plain_text"
"""Metadata key. True: prompt and completion were plain strings, to be used without a chat template."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of this package's own `experiences` table, its JSON columns still as the stored text."""

    columns: RawRow
    digest: str | None
    """Digest in the file; None when the file has none."""
    attachments: Sequence[tuple[str, str, bytes]] = ()
    """(payload id, media type, bytes) of each payload that the row refers to."""


Record = Task | Experience | PreferencePair | StoredRow | Feedback


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts that the caller of an import gives, because the file does not tell."""

    taskset: str
    split: Split = Split.TRAIN
    """Split of the tasks that the rows become."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Thresholds on rewards, for training sets."""

    margin: float = 0.0
    """A mined pair needs best reward - worst reward > margin."""
    threshold: float = 0.5
    """An unpaired completion is desirable when reward >= threshold."""


Read = Callable[[Row, Origin], Sequence[Record]]
Write = Callable[[Any, Choices], Row]  # of the kind of row that the format is written from


@dataclass(frozen=True, slots=True)
class Format:
    """One format: how its rows are recognised, read and written."""

    name: str
    shapes: tuple[str, ...]
    """The accepted shapes, as text for people."""
    needs: tuple[frozenset[str], ...] = ()
    """Sets of columns: a file that has all columns of one set fits. Empty: the format is never detected."""
    read: Read | None = None
    """None for a format that is only written. Raises RowError for a row that does not fit."""
    write: Write | None = None
    """Raises RowError for a row this format cannot express."""
    tables: tuple[str, ...] = ()
    """Tables of a buffer that it can be written from; the first is the default."""
    flat: bool = False
    """Whether its rows hold strings and numbers only, as CSV needs."""
    training: bool = False
    """Whether it is a training set: evaluation rows, held-out rows and metadata are left out."""
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    """Arrow schema by table, for a format whose columns do not depend on the rows."""
    regroup: Callable[[Iterator[Found]], Iterator[Found]] | None = None
    """For a format whose records lie in several rows of a file: makes the rows that `read` takes."""


class FileColumns(TypedDict, total=False):
    """Columns of `Experience` that only some files have."""

    source: RowSource
    tools: Sequence[JsonObject] | None
    metadata: JsonObject
    reward: float
    reward_parts: Mapping[str, float]
    finish_reason: str
    sampling: JsonObject


def imported_experience(
    origin: Origin,
    messages: Sequence[Message],
    prompt_messages: int,
    *,
    task_id: str | None = None,
    group: Sequence[object] | None = None,
    member: int = 0,
    **columns: Unpack[FileColumns],
) -> Experience:
    """An experience from a file; its id is the hash of its whole content.

    Args:
        prompt_messages: how many of the leading messages are the prompt.
        task_id: None: the id of a task with this prompt and no answer.
        group: values that all rows of its group share, from which the group id is made. None: a group of one.
        columns: further columns; `source` is `import` unless given.
    """
    whole = [dict(m) for m in messages]
    name = content_id(
        "import", origin.taskset, task_id, whole, prompt_messages, group, member, sorted(columns.items())
    )
    filled: FileColumns = {"source": RowSource.IMPORT, **columns}
    return Experience(
        experience_id=name,
        run_id=import_run_id(origin.taskset),
        taskset=origin.taskset,
        task_id=task_id or prompt_id(origin.taskset, messages[:prompt_messages]),
        group_id=name if group is None else content_id("import", origin.taskset, *group),
        member=member,
        messages=tuple(whole),
        prompt_messages=prompt_messages,
        completion_text=completion_text(messages[prompt_messages:]),
        **filled,
    )


def import_run_id(taskset: str) -> str:
    """The run id of a taskset's imported rows."""
    return f"import/{taskset}"


def prompt_id(taskset: str, prompt: Sequence[Message]) -> str:
    """The id of a task with this prompt and no reference answer."""
    return Task(taskset, tuple(prompt)).task_id


def extra_columns(row: Row, known: Sequence[str]) -> Row:
    """The row's column `metadata`, and all columns that its format does not know, as one mapping.

    Columns that are null are left out. A column replaces a key of `metadata` with the same name.
    """
    own = row.get("metadata")
    rest: Row = {k: v for k, v in row.items() if k not in known and k != "metadata" and v is not None}
    if isinstance(own, Mapping):
        rest = {**own, **rest}
    elif own not in (None, ""):
        rest["metadata"] = own
    return {k: v for k, v in rest.items() if not k.startswith(RESERVED)}


def with_metadata(row: Row, metadata: JsonObject, *, but: Sequence[str] = ()) -> Row:
    """The row with a column `metadata`: the keys that are not reserved and not in `but`, if any."""
    kept = {k: v for k, v in metadata.items() if not k.startswith(RESERVED) and k not in but}
    return {**row, "metadata": kept} if kept else row


def text_cell(row: Row, column: str) -> str:
    """A column that must hold text; a number is turned into text.

    Raises: RowError if it is missing, empty or something else.
    """
    value = row.get(column)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        found = "nothing" if value is None else type(value).__name__
        raise RowError(f"column '{column}' holds {found}; text is needed")
    if not value.strip():
        raise RowError(f"column '{column}' is empty")
    return value
