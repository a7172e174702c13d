"""Copy a buffer of an older schema version into a new folder of the present one; the old one is not touched.

Every row is checked against its digest, so damage is not carried over. Version 1 had other digests and is
appended anew; version 2 lacked only `masked` of the annotations, and the other files are copied.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rft_data.buffer.buffer import Buffer
from rft_data.buffer.location import OWNER_LOCK, living_owner
from rft_data.core.errors import BusyError, IntegrityError, MissingFileError
from rft_data.core.files import write_text
from rft_data.core.lock import kept_free
from rft_data.core.rows import canonical_json, content_id
from rft_data.core.schema import INCOMING, SCHEMA_VERSION, TABLES
from rft_data.core.words import LeaseEvent

_BATCH_ROWS = 4096


def upgrade(old: Path, new: Path) -> dict[str, int]:
    """Copy `old` (schema version 1 or 2) to `new`, row numbers kept.

    Returns: rows per table.
    Raises: MissingFileError if there is no buffer at `old`; IntegrityError if its version cannot be
        upgraded, a row does not match its digest, or `new` holds other rows; BusyError if a run is
        writing to `old`.
    """
    return _FROM[_version_of(old)](old, new)


def _from_1(old: Path, new: Path) -> dict[str, int]:
    import lance

    rows: dict[str, int] = {}
    with Buffer(new) as buffer:
        for name in TABLES:
            if not (old / f"{name}.lance").is_dir():
                continue
            dataset = lance.dataset(str(old / f"{name}.lance"))
            rows[name] = dataset.count_rows()
            done = buffer.counts()[name]
            if name == "experiences":
                _copy_experiences(dataset, buffer)
            elif done == 0:
                add = buffer.annotate if name == "annotations" else partial(buffer.add_table, name)
                for batch in dataset.to_batches(batch_size=_BATCH_ROWS):
                    add(_filled(pa.table(batch), TABLES[name][0], _ADDED.get(name, {})))
            elif done != rows[name]:
                raise IntegrityError(
                    f"table '{name}' of {new} has {done} rows already, {old} has {rows[name]}; upgrade into "
                    "a new folder."
                )
    return rows


def _from_2(old: Path, new: Path) -> dict[str, int]:
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
    part = new.with_name(f"{new.name}.part")  # an interrupted copy is begun again
    shutil.rmtree(part, ignore_errors=True)
    if living_owner(old):
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

    dataset = lance.dataset(str(old / "annotations.lance"))
    for batch in dataset.to_batches(batch_size=_BATCH_ROWS):
        buffer.annotate(_filled(pa.table(batch), TABLES["annotations"][0], _ADDED["annotations"]))


def _counts(root: Path) -> dict[str, int]:
    """Rows of each table that is there."""
    import lance

    found = [name for name in TABLES if (root / f"{name}.lance").is_dir()]
    return {name: lance.dataset(str(root / f"{name}.lance")).count_rows() for name in found}


def _version_of(old: Path) -> str:
    marker = old / "schema_version"
    if not marker.is_file():
        raise MissingFileError(f"there is no buffer at {old} (no file 'schema_version' in it).")
    found = marker.read_text().strip()
    if found not in _FROM:
        raise IntegrityError(
            f"buffer {old} has schema version {found}; known are {' and '.join(_FROM)} to {SCHEMA_VERSION}."
        )
    return found


def _copy_experiences(dataset: Any, buffer: Buffer) -> None:
    for batch in dataset.to_batches(batch_size=_BATCH_ROWS):
        if batch.num_rows == 0:
            continue
        table = pa.table(batch)
        for seq, stored, actual in zip(
            table["seq"].to_pylist(), table["digest"].to_pylist(), _digests_v1(table), strict=True
        ):
            if stored != actual:
                raise IntegrityError(f"experience row {seq} does not match its digest; it is not copied.")
        done = buffer.append(_filled(table, INCOMING, _ADDED["experiences"]))
        if list(done.seqs) != table["seq"].to_pylist():
            raise IntegrityError(f"the new folder {buffer.root} holds other rows; upgrade into a new one.")


Fill = Callable[[Mapping[str, Any]], Any] | None
"""How a new column follows from an old row; None: it is null."""


def _filled(table: pa.Table, schema: pa.Schema, added: Mapping[str, Fill]) -> pa.Table:
    """The table in its present form; columns that are new in it come from the old row."""
    rows = table.to_pylist() if any(added.values()) else []
    columns = []
    for field in schema:
        if field.name not in added:
            columns.append(table.column(field.name).cast(field.type))
        elif fill := added[field.name]:
            columns.append(pa.array([fill(row) for row in rows], field.type))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _prompt_messages(row: Mapping[str, Any]) -> int:
    messages = json.loads(row["messages"])
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    return len(messages) - answered


_ADDED: Mapping[str, Mapping[str, Fill]] = {
    "tasks": {
        "workflow": None,
        "reward": None,
        "tags": lambda row: [],
        "parent_experience_id": None,
    },
    "experiences": {
        "prompt_messages": _prompt_messages,
        "tools": None,
        "teacher_logprobs": None,
        "environment": None,
        "payloads": lambda row: [],
        "metadata": lambda row: "{}",
    },
    "annotations": {"masked": None},
    "groups": {"round": lambda row: row["ordinal"]},
    "leases": {
        "event_id": lambda row: content_id("upgrade", row["lease_id"]),
        "kind": lambda row: LeaseEvent.GRANT,
        "reason": lambda row: "",
    },
}


_FROM: Mapping[str, Callable[[Path, Path], dict[str, int]]] = {"1": _from_1, "2": _from_2}


def _digests_v1(table: pa.Table) -> list[str]:
    """Schema 1: blake2b-128 over each column's name, a null marker or the size, and the value's bytes."""
    names = [name for name in table.column_names if name not in ("seq", "created_at", "digest")]
    digests = []
    for row in table.select(names).to_pylist():
        hasher = hashlib.blake2b(digest_size=16)
        for name in names:
            value = _bytes_v1(row[name], table.schema.field(name).type)
            hasher.update(name.encode())
            hasher.update(b"\x00" if value is None else b"\x01" + len(value).to_bytes(8, "little") + value)
        digests.append(hasher.hexdigest())
    return digests


def _bytes_v1(value: Any, kind: pa.DataType) -> bytes | None:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return bytes(value.encode("utf-8", "surrogatepass"))
    if pa.types.is_list(kind) and not pa.types.is_primitive(kind.value_type):
        return canonical_json(value).encode()
    element = kind.value_type if pa.types.is_list(kind) else kind
    return np.asarray(value, element.to_pandas_dtype()).tobytes()
