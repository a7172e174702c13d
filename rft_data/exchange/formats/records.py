"""What a format is: how a row from outside becomes canonical rows, and how a canonical row is written.

The canonical rows are `rows.Task`, `rows.Experience` and `rows.PreferencePair`. Ids are content hashes, so
importing the same row again makes the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rft_data.core.errors import RowError
from rft_data.core.rows import Experience, Message, PreferencePair, Task, content_id
from rft_data.core.words import RowSource, Split
from rft_data.exchange.formats.chat import completion_text

Row = dict[str, Any]
"""One row of a file: column name to JSON value."""

RESERVED = "rft:"
"""Prefix of the metadata keys that formats keep for themselves; never taken from a file, never written."""
PLAIN = "rft:plain_text"
"""Metadata key, True: prompt and completion were plain strings, to be used without a chat template."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of this package's own `experiences` table, its JSON columns still as the stored text."""

    columns: Mapping[str, Any]
    digest: str | None
    """Digest it was exported with; None when the file has none."""
    attachments: Sequence[tuple[str, str, bytes]] = ()
    """(payload id, media type, bytes) of what the row refers to."""


Record = Task | Experience | PreferencePair | StoredRow


@dataclass(frozen=True, slots=True)
class Origin:
    """What the file cannot say of itself."""

    taskset: str
    split: Split = Split.TRAIN
    """Split of the tasks made."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What a training set needs decided."""

    margin: float = 0.0
    """A mined pair needs best reward - worst reward > margin."""
    threshold: float = 0.5
    """An unpaired completion is desirable when reward >= threshold."""


Read = Callable[[Row, Origin], Sequence[Record]]
Write = Callable[[Any, Choices], Row]


@dataclass(frozen=True, slots=True)
class Format:
    """One format, in both directions."""

    name: str
    shapes: tuple[str, ...]
    """The accepted shapes, in words."""
    needs: tuple[frozenset[str], ...] = ()
    """Sets of columns; a file that has all columns of one set fits. Empty: never detected."""
    read: Read | None = None
    """None for a format that is only written. Raises RowError for a row that does not fit."""
    write: Write | None = None
    """Raises RowError for a row this format cannot express."""
    tables: tuple[str, ...] = ()
    """Tables of a buffer it is written from; the first is the default."""
    flat: bool = False
    """Whether a row is strings and numbers only, as CSV needs."""
    training: bool = False
    """Made for a trainer: evaluation and held-out rows are left out, and so is metadata."""
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    """Arrow schema by table, for a format whose columns are known before the rows are."""


def imported_experience(
    origin: Origin,
    messages: Sequence[Message],
    prompt_messages: int,
    *,
    task_id: str | None = None,
    group: Sequence[object] | None = None,
    member: int = 0,
    **fields: Any,
) -> Experience:
    """An experience from a file; its id is the hash of everything it says.

    `prompt_messages` counts the leading messages that are the prompt. `group` names what its group
    shares (default: the row is its own group). `fields`: further columns of `Experience`.
    """
    said = [dict(m) for m in messages]
    name = content_id(
        "import", origin.taskset, task_id, said, prompt_messages, group, member, sorted(fields.items())
    )
    return Experience(
        experience_id=name,
        run_id=import_run_id(origin.taskset),
        taskset=origin.taskset,
        task_id=task_id or prompt_id(origin.taskset, messages[:prompt_messages]),
        group_id=name if group is None else content_id("import", origin.taskset, *group),
        member=member,
        messages=tuple(said),
        prompt_messages=prompt_messages,
        completion_text=completion_text(messages[prompt_messages:]),
        **{"source": RowSource.IMPORT, **fields},
    )


def import_run_id(taskset: str) -> str:
    """The run that imported rows of a taskset belong to."""
    return f"import/{taskset}"


def prompt_id(taskset: str, prompt: Sequence[Message]) -> str:
    """The task id of a prompt without reference answer."""
    return Task(taskset, tuple(prompt)).task_id


def extra_columns(row: Row, known: Sequence[str]) -> dict[str, Any]:
    """The columns of a row that its format does not know, and its own `metadata`, as one mapping.

    Null columns are left out (a table fills its gaps with them); another column wins over a metadata key
    of the same name.
    """
    own = row.get("metadata")
    rest = {k: v for k, v in row.items() if k not in known and k != "metadata" and v is not None}
    if isinstance(own, Mapping):
        rest = {**own, **rest}
    elif own not in (None, ""):
        rest["metadata"] = own
    return {k: v for k, v in rest.items() if not k.startswith(RESERVED)}


def with_metadata(row: Row, metadata: Mapping[str, Any], *, but: Sequence[str] = ()) -> Row:
    """The row with its metadata as one `metadata` column, when there is any."""
    kept = {k: v for k, v in metadata.items() if not k.startswith(RESERVED) and k not in but}
    return {**row, "metadata": kept} if kept else row


def text_cell(row: Row, column: str) -> str:
    """A column that must hold text; a number is taken as its text.

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
