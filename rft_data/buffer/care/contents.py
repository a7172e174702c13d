"""Checks the rows of one table by themselves: digests, ids, JSON. Batch by batch, in bounded memory.

Lance stores no checksum, so a flipped bit is found only in rows with a digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rft_data.buffer.care.folder import FileFault, Snapshot, TableFolder, attempt
from rft_data.buffer.care.fragment_rows import FragmentDamageError, FragmentRows, rows_at_once
from rft_data.buffer.care.ranges import Numbers, among
from rft_data.buffer.whole_rows import preference_ids, task_ids
from rft_data.core.canonical import bytes_id, content_id
from rft_data.core.digests import row_digests
from rft_data.core.schema import TABLES, is_json

_EPOCH = pa.scalar(0, pa.timestamp("us", tz="UTC"))
"""The time in placeholder rows, which a repair writes and deletes again."""
ONCE = ("experiences", "leases")
"""Tables in which the same id twice is damage; elsewhere a repeated row is only redundant."""

RowKind: TypeAlias = Literal["digest", "seq", "duplicate", "value"]
"""Kinds of findings about one row; `damage.KINDS` has the meaning of each."""


@dataclass(slots=True)
class Contents:
    """The result of checking every row of a table."""

    row_ids: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    """Row ids of the rows that can be read, sorted."""
    keys: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    """xxh3-64 of the primary key of each of these rows (zeros in a table without one)."""
    bad: dict[int, tuple[RowKind, str]] = field(default_factory=dict)
    """Row id to (kind of finding, what is wrong) of rows that are stored but bad."""
    faults: dict[int, FileFault] = field(default_factory=dict)
    """Fragments that cannot be decoded as a whole."""
    unreadable: dict[int, Numbers] = field(default_factory=dict)
    """Row ids in these fragments that cannot be read alone either."""

    def key_hashes(self, row_ids: Numbers) -> npt.NDArray[np.uint64]:
        """Key hashes of stored rows; 0 for the others."""
        if not len(self.row_ids):
            return np.zeros(len(row_ids), np.uint64)
        at = np.minimum(np.searchsorted(self.row_ids, row_ids), len(self.row_ids) - 1)
        return np.where(self.row_ids[at] == row_ids, self.keys[at], np.uint64(0))

    def has(self, row_ids: Numbers) -> npt.NDArray[np.bool_]:
        """Whether each row is stored and sound."""
        there = among(row_ids, self.row_ids)
        if self.bad:
            there &= np.array([int(row_id) not in self.bad for row_id in row_ids], np.bool_)
        return there


def look(folder: TableFolder, broken: set[int], *, deep: bool) -> Contents:
    """Check the rows of all fragments but the `broken` ones; without `deep` only numbers and ids."""
    if folder.head is None:
        return Contents()
    columns = columns_to_read(folder, deep=deep)
    numbers = [number for number in folder.fragments if number not in broken]
    try:
        found = _checked(folder.name, rows_at_once(folder.head, numbers, columns), deep=deep)
    except FragmentDamageError:
        damaged: dict[int, Numbers] = {}
        each = _one_by_one(folder.head, numbers, columns, damaged)
        found = _checked(folder.name, each, deep=deep)
        found.unreadable = damaged
        for number in damaged:
            found.faults[number] = FileFault(number, "unreadable_rows", folder.data_path(number))
    if folder.name in ONCE:
        _mark_duplicates(folder.head, str(TABLES[folder.name][1]), found)
    return found


def _one_by_one(
    head: Snapshot, numbers: Sequence[int], columns: Sequence[str], damaged: dict[int, Numbers]
) -> Iterator[pa.Table]:
    """The rows of each fragment; `damaged` gets the row ids of those that cannot be read."""
    for number in numbers:
        rows = FragmentRows(head, number, columns)
        yield from rows
        if not rows.decodes:
            damaged[number] = rows.unreadable


def _checked(name: str, batches: Iterable[pa.Table], *, deep: bool) -> Contents:
    """The contents of a table, without what cannot be read."""
    found = Contents()
    ids, keys = [found.row_ids], [found.keys]
    for batch in batches:
        row_ids = np.asarray(batch.column("_rowid")).astype(np.int64)
        ids.append(row_ids)
        keys.append(_key_hashes(name, batch))
        found.bad |= bad_rows(name, batch, row_ids, deep=deep)
    found.row_ids, found.keys = np.concatenate(ids), np.concatenate(keys)
    order = np.argsort(found.row_ids, kind="stable")
    found.row_ids, found.keys = found.row_ids[order], found.keys[order]
    return found


def columns_to_read(folder: TableFolder, *, deep: bool) -> list[str]:
    """Every column of a table, or its row number and primary key."""
    stored = [] if folder.head is None else folder.head.names
    if deep or folder.name not in TABLES:
        return stored
    wanted = ("seq", TABLES[folder.name][1])
    return [column for column in stored if column in wanted] or stored[:1]


def _key_hashes(name: str, batch: pa.Table) -> npt.NDArray[np.uint64]:
    key = TABLES[name][1] if name in TABLES else None
    if key is None or key not in batch.column_names:
        return np.zeros(batch.num_rows, np.uint64)
    texts = batch.column(key).cast(pa.binary()).to_pylist()
    return np.fromiter((xxhash.xxh3_64_intdigest(text or b"") for text in texts), np.uint64, len(texts))


def key_hash(key: str) -> int:
    """The hash of one primary key, as `Contents.keys` holds it."""
    return xxhash.xxh3_64_intdigest(key.encode())


def _mark_duplicates(head: Snapshot, key: str, found: Contents) -> None:
    """Every row but the first with the same id is bad; equal hashes are confirmed by comparing ids."""
    order = np.argsort(found.keys, kind="stable")
    hashes = found.keys[order]
    repeats = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not len(repeats):
        return
    suspects = np.unique(found.row_ids[order[np.concatenate([repeats, repeats + 1])]])
    first: dict[str, int] = {}
    for row_id in suspects.tolist():
        rows = attempt(partial(head.dataset._take_rows, [row_id], [key]))
        for text in () if rows is None else rows.column(0).to_pylist():
            if first.setdefault(text, row_id) != row_id:
                found.bad[row_id] = ("duplicate", f"same {key} as row {first[text]}")


# --- one batch --------------------------------------------------------------------------------------


def bad_rows(name: str, batch: pa.Table, row_ids: Numbers, *, deep: bool) -> dict[int, tuple[RowKind, str]]:
    """Row id to (kind of finding, what is wrong) of the bad rows of the batch."""
    bad: dict[int, tuple[RowKind, str]] = {}
    if name == "experiences" and "seq" in batch.column_names:
        seqs = batch.column("seq").to_pylist()
        for row_id, seq in zip(row_ids.tolist(), seqs, strict=True):
            if row_id != seq:
                bad[row_id] = ("seq", f"seq is {seq}")
    if not deep or name not in TABLES:
        return bad
    for place, (kind, why) in (_digests(batch) if name == "experiences" else _values(name, batch)).items():
        bad[int(row_ids[place])] = (kind, why)
    return bad


def _digests(batch: pa.Table) -> dict[int, tuple[RowKind, str]]:
    """Place to finding, for experiences that do not match their digest."""
    actual = attempt(lambda: row_digests(batch))
    stored = attempt(lambda: batch.column("digest").to_pylist())
    if actual is None or stored is None:
        if batch.num_rows == 1:
            return {0: ("digest", "its bytes cannot be read as a row")}
        half = batch.num_rows // 2
        second = _digests(batch.slice(half))
        return _digests(batch.slice(0, half)) | {half + place: why for place, why in second.items()}
    return {
        place: ("digest", f"stored {stored[place]}, computed {digest}")
        for place, digest in enumerate(actual)
        if digest != stored[place]
    }


def _values(name: str, batch: pa.Table) -> dict[int, tuple[RowKind, str]]:
    """Place to finding, for rows of a small table."""
    own = OWN_DIGESTS.get(name)
    whole = attempt(lambda: _check(name, own, batch))
    if whole is True:
        return {}
    bad: dict[int, tuple[RowKind, str]] = {}
    for place in range(batch.num_rows):
        verdict = attempt(partial(_check, name, own, batch.slice(place, 1)))
        if verdict is None:
            bad[place] = ("value", "text that is not UTF-8 or JSON that does not parse")
        elif not verdict:
            bad[place] = ("digest", "its own id or digest does not match it")
    return bad


def _check(name: str, own: Callable[[pa.Table], bool] | None, rows: pa.Table) -> bool:
    """Whether rows match their own digests; raises when a value is not valid in its column."""
    rows = rows.select([column for column in rows.column_names if column != "_rowid"])
    rows.validate(full=True)
    if "created_at" in rows.column_names and pc.any(pc.equal(rows.column("created_at"), _EPOCH)).as_py():
        return False
    for f in TABLES[name][0]:
        if is_json(f):
            for text in rows.column(f.name).to_pylist():
                if text is not None:
                    json.loads(text)
    return own is None or own(rows)


def _leases(rows: pa.Table) -> bool:
    pairs = zip(rows.column("seqs").to_pylist(), rows.column("digest").to_pylist(), strict=True)
    return all(content_id(seqs) == digest for seqs, digest in pairs)


def _payloads(rows: pa.Table) -> bool:
    return all(
        bytes_id(row["data"]) == row["payload_id"] and len(row["data"]) == row["size"]
        for row in rows.select(["payload_id", "size", "data"]).to_pylist()
    )


def _consumed(rows: pa.Table) -> bool:
    names = [f"{r['run_id']}/{r['consumer']}/{r['step']}" for r in rows.to_pylist()]
    return names == list(rows.column("lease_id").to_pylist())


OWN_DIGESTS: Mapping[str, Callable[[pa.Table], bool]] = {
    "leases": _leases,
    "payloads": _payloads,
    "tasks": lambda rows: task_ids(rows) == rows.column("task_id").to_pylist(),
    "preferences": lambda rows: preference_ids(rows) == rows.column("preference_id").to_pylist(),
    "consumed": _consumed,
}
"""Checks of small tables whose rows have a hash of their values: do all rows match it?"""
