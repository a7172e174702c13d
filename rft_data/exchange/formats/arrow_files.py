"""Rows from Arrow files. A damaged one can crash its reader, so a child process reads each file first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from rft_data.core.children import Child, how_it_ended
from rft_data.exchange.formats.jsonlines import Found
from rft_data.exchange.formats.tables import table_rows, unreadable

_DEADLINE_S = 300.0
"""Time limit for checking one batch."""


def read_arrow(path: Path) -> Iterator[Found]:
    """Rows of an Arrow file, in the file or the stream format.

    Raises: RowError where the file is damaged, after the rows of the whole batches before that place.
    """
    whole, damage = whole_batches(path)
    try:
        if whole:
            yield from table_rows(islice(batches(path), whole), str(path))
    except (OSError, ValueError, pa.ArrowException) as err:
        raise unreadable(str(path), err) from err
    if damage:
        raise unreadable(str(path), damage)


def check_arrow(paths: Sequence[Path], name: str) -> None:
    """Read files to their ends. `name`: of all of them, for the error.

    Raises: RowError if one is damaged anywhere.
    """
    _, damage = whole_batches(*paths)
    if damage:
        raise unreadable(name, damage)


def whole_batches(*paths: Path) -> tuple[int, str]:
    """The number of batches that can be read, and why the next one cannot; "" when all files are whole."""
    whole, lines = 0, [""]
    child = Child("rft_data.exchange.formats.arrow_trial", *map(Path.absolute, paths), on_line=lines.append)
    try:
        while (said := json.loads(child.line(_DEADLINE_S))) == "batch":
            whole += 1
        return whole, str(said)
    except TimeoutError:
        return whole, f"checking one batch took longer than {_DEADLINE_S:g} s"
    except EOFError:
        how = how_it_ended(child.end(_DEADLINE_S))
        return whole, f"the process that checked it ended with {how} {lines[-1]}".rstrip()
    finally:
        child.close()


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a file of either format.

    Raises: OSError, ValueError or an Arrow error where it is damaged.
    """
    with pa.memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if not is_file:
            yield from pa.ipc.open_stream(source)
            return
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            yield file.get_batch(number)


def check_batch(batch: pa.RecordBatch) -> None:
    """Check that no offset and no index points outside its data; a text that is not UTF-8 is no error here.

    Raises: ArrowInvalid.
    """
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            column.cast(_without_text(column.type)).validate(full=True)


def _without_text(kind: pa.DataType) -> pa.DataType:
    """The type with bytes where it has text."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_without_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_text(field.type)) for field in kind])
    return kind
