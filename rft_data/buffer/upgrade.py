"""Copy a buffer of an older schema version into a new folder of the present one; the old one is not touched.

Every row is checked against its old digest first, so damage is not carried over under a new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rft_data.buffer.buffer import Buffer
from rft_data.errors import IntegrityError, MissingFileError
from rft_data.rows import canonical_json, content_id
from rft_data.schema import INCOMING, SCHEMA_VERSION, TABLES

_BATCH_ROWS = 4096


def upgrade(old: Path, new: Path) -> dict[str, int]:
    """Copy `old` (schema version 1) to `new`, row numbers kept.

    Returns: rows per table.
    Raises: MissingFileError if there is no buffer at `old`; IntegrityError if its version cannot be
        upgraded, a row does not match its digest, or `new` holds other rows.
    """
    import lance

    _check_version(old)
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


def _check_version(old: Path) -> None:
    marker = old / "schema_version"
    if not marker.is_file():
        raise MissingFileError(f"there is no buffer at {old} (no file 'schema_version' in it).")
    found = marker.read_text().strip()
    if found != "1":
        raise IntegrityError(f"buffer {old} has schema version {found}; from 1 to {SCHEMA_VERSION} is known.")


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


Fill = Callable[[Mapping[str, Any]], Any]


def _filled(table: pa.Table, schema: pa.Schema, added: Mapping[str, Fill]) -> pa.Table:
    """The table in its present form; columns that are new in it come from the old row."""
    rows = table.to_pylist() if added else []
    columns = [
        pa.array([added[field.name](row) for row in rows], field.type)
        if field.name in added
        else table.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _prompt_messages(row: Mapping[str, Any]) -> int:
    messages = json.loads(row["messages"])
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    return len(messages) - answered


_ADDED: Mapping[str, Mapping[str, Fill]] = {
    "tasks": {
        "workflow": lambda row: None,
        "reward": lambda row: None,
        "tags": lambda row: [],
        "parent_experience_id": lambda row: None,
    },
    "experiences": {
        "prompt_messages": _prompt_messages,
        "tools": lambda row: None,
        "teacher_logprobs": lambda row: None,
        "environment": lambda row: None,
        "payloads": lambda row: [],
        "metadata": lambda row: "{}",
    },
    "groups": {"round": lambda row: row["ordinal"]},
    "leases": {
        "event_id": lambda row: content_id("upgrade", row["lease_id"]),
        "kind": lambda row: "grant",
        "reason": lambda row: "",
    },
}


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
