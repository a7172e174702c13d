"""Copy a buffer of schema version 2 into a new folder with the present version; the old one is unchanged.

Every row is checked against its digest, so damage is not copied. Version 2 lacked only `masked` in the
annotations; all other files are copied.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from rft_data.buffer.buffer import Buffer
from rft_data.buffer.location import OWNER_LOCK, owner_pid
from rft_data.core.errors import BusyError, IntegrityError, MissingFileError
from rft_data.core.files import write_text
from rft_data.core.lock import kept_free
from rft_data.core.schema import ANNOTATIONS, OLDEST_COPIED, SCHEMA_VERSION, TABLES

_BATCH_ROWS = 4096


def upgrade(old: Path, new: Path) -> dict[str, int]:
    """Copy `old` (schema version 2) to `new`, row numbers kept.

    Returns: rows per table.
    Raises: MissingFileError if there is no buffer at `old`; IntegrityError if its version cannot be
        upgraded, a row does not match its digest, or `new` holds other rows; BusyError if a run is
        writing to `old`.
    """
    _check_version(old)
    rows = _counts(old)
    if new.is_dir() and any(new.iterdir()):
        filled = {name: n for name, n in rows.items() if n}
        copied = {name: n for name, n in _counts(new).items() if n}
        marker = new / "schema_version"
        finished = marker.is_file() and marker.read_text().strip() == str(SCHEMA_VERSION)
        if not finished or copied != filled:
            raise IntegrityError(
                f"{new} holds something else than a copy of {old}; upgrade into a new folder."
            )
        return rows
    part = new.with_name(f"{new.name}.part")  # start an interrupted copy again
    shutil.rmtree(part, ignore_errors=True)
    if owner_pid(old):
        raise BusyError(f"buffer {old} is being written to; wait for that run to end or stop it.")
    with kept_free(old / OWNER_LOCK):
        shutil.copytree(old, part, ignore=shutil.ignore_patterns(OWNER_LOCK, "annotations.lance"))
        write_text(part / "schema_version", f"{SCHEMA_VERSION}\n")
        with Buffer(part) as buffer:
            for batch in buffer.batches("experiences", ["seq"]):
                buffer.take(batch.column("seq").to_pylist())  # compares digests
            if "annotations" in rows:
                _copy_annotations(old, buffer)
    part.rename(new)
    return rows


def _copy_annotations(old: Path, buffer: Buffer) -> None:
    import lance

    names = [name for name in ANNOTATIONS.names if name != "masked"]
    for batch in lance.dataset(str(old / "annotations.lance")).to_batches(names, batch_size=_BATCH_ROWS):
        columns = {name: batch[name].cast(ANNOTATIONS.field(name).type) for name in names}
        columns["masked"] = pa.nulls(batch.num_rows, pa.bool_())
        buffer.annotate(pa.table(columns, schema=ANNOTATIONS))


def _counts(root: Path) -> dict[str, int]:
    """Number of rows of each table in the folder."""
    import lance

    found = [name for name in TABLES if (root / f"{name}.lance").is_dir()]
    return {name: lance.dataset(str(root / f"{name}.lance")).count_rows() for name in found}


def _check_version(old: Path) -> None:
    marker = old / "schema_version"
    if not marker.is_file():
        raise MissingFileError(f"there is no buffer at {old} (no file 'schema_version' in it).")
    found = marker.read_text().strip()
    if found != str(OLDEST_COPIED):
        raise IntegrityError(
            f"buffer {old} has schema version {found}; this package copies version {OLDEST_COPIED} into "
            f"{SCHEMA_VERSION}, the present one."
        )
