"""Repairs one table: manifests, then files, then rows. `settle.py` repairs references between tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rft_data.buffer.care import commits
from rft_data.buffer.care.aside import Aside
from rft_data.buffer.care.examine import Examined
from rft_data.buffer.care.folder import Snapshot, TableFolder
from rft_data.buffer.care.fragment_rows import FragmentRows
from rft_data.buffer.care.lost_commits import LostCommits
from rft_data.buffer.care.order import put_in_order
from rft_data.buffer.care.ranges import Numbers, ranges_text, to_ranges
from rft_data.buffer.care.repair_report import Repaired
from rft_data.buffer.care.salvage import by_time, from_older_versions, read_files
from rft_data.buffer.care.undecodable import column_at
from rft_data.buffer.manifests import hint_path, hinted_version
from rft_data.core.files import write_text
from rft_data.core.json_types import Json
from rft_data.core.schema import TABLES

if TYPE_CHECKING:
    import lance

_EXCERPT_BYTES = 64 << 10
"""Longest excerpt of a value of a removed row in the report; the Arrow file has the whole value."""


def mend_manifests(folder: TableFolder, aside: Aside, done: Repaired) -> None:
    """Fall back to the newest version that opens; append the rows found in files of lost commits.

    The data files stay in their place, so that a repair that is killed here can be done again.
    """
    if folder.head is None:
        _recreate(folder, aside, done)
        return
    named = folder.name == "experiences" and any(f.kind == "row_counter" for f in done.findings)
    lost = LostCommits(folder, numbers_named=named)
    for path in lost.files:
        aside.link(path)
    for manifest in folder.bad_heads:
        aside.move(manifest.path)
        done.commits.append(f"{folder.name}@{manifest.version}")
    if folder.bad_heads:
        done.actions.append(
            f"{folder.name}: {len(folder.bad_heads)} unreadable manifests moved aside; "
            f"the table is back at version {folder.head.version}"
        )
    if folder.name in TABLES:
        _append_again(folder, lost.rows(), done)
    if folder.bad_heads or folder.missing_versions:
        _correct_hint(folder, done)


def _correct_hint(folder: TableFolder, done: Repaired) -> None:
    """Let the hint name the newest version, once all that can be found of later ones is stored again."""
    newest = commits.latest(folder.path).version
    if hinted_version(folder.path) != newest:
        commits.step()
        write_text(hint_path(folder.path), json.dumps({"version": newest}))
    if folder.missing_versions:
        done.actions.append(
            f"{folder.name}: {folder.missing_versions} manifests are gone; the table goes on from "
            f"version {newest}"
        )


def _append_again(folder: TableFolder, rows: pa.Table, done: Repaired) -> None:
    if rows.num_rows == 0:
        return
    dataset = commits.latest(folder.path)
    if folder.name == "experiences":
        append_numbered(dataset, folder.next_row_id, rows)
    else:
        commits.append(dataset, rows)
    done.recovered[folder.name] += rows.num_rows
    done.actions.append(f"{folder.name}: {rows.num_rows} rows of commits without manifest appended again")


def append_numbered(dataset: lance.LanceDataset, start: int, rows: pa.Table, end: int = 0) -> None:
    """Append experiences under their own numbers, from the next row id `start` to before `end`.

    Numbers that are not in `rows` get placeholders, which are deleted at once.
    """
    filled, holes = numbered(rows, start, end)
    if filled.num_rows:
        commits.delete(commits.append(dataset, filled), holes)


def numbered(rows: pa.Table, start: int, end: int = 0) -> tuple[pa.Table, Numbers]:
    """Experiences, sorted by number, with placeholders for every other number from `start` to before `end`.

    Returns: the rows, and the numbers of the placeholders.
    """
    seqs = np.asarray(rows.column("seq"))
    end = max(start, end, int(seqs[-1]) + 1 if len(seqs) else 0)
    schema = TABLES["experiences"][0]
    source = np.full(end - start, rows.num_rows, np.int64)
    source[seqs - start] = np.arange(rows.num_rows)
    filled = pa.concat_tables([rows.cast(schema), commits.placeholders(schema, 1)]).combine_chunks()
    filled = filled.take(pa.array(source))
    at = schema.get_field_index("seq")
    filled = filled.set_column(at, schema.field("seq"), pa.array(np.arange(start, end)))
    return filled, np.flatnonzero(source == rows.num_rows) + start


def _recreate(folder: TableFolder, aside: Aside, done: Repaired) -> None:
    """No version opens: make a new one, in one commit, from the rows in the table's data files.

    Until that commit no version opens, so that a repair that is killed before it can be done again.
    """
    done.commits += [f"{folder.name}@{manifest.version}" for manifest in folder.bad_heads]
    done.actions.append(f"{folder.name}: no version opens; its files moved aside and the table started anew")
    if folder.name not in TABLES:
        aside.move(folder.path)
        return
    files = by_time((folder.path / "data").glob("*.lance"))
    experiences = folder.name == "experiences"
    rows = read_files(folder.name, files[::-1] if experiences else files)
    for part in ("_transactions", "_deletions", "_versions"):
        if (folder.path / part).is_dir():
            aside.move(folder.path / part)
    schema, key = TABLES[folder.name]
    if experiences:
        filled, holes = numbered(rows, 0)
        commits.delete(commits.create(folder.path, schema, key, filled), holes)
    else:
        commits.create(folder.path, schema, key, rows.sort_by("created_at"))
    for path in files:
        aside.move(path)
    if rows.num_rows:
        done.recovered[folder.name] += rows.num_rows
        done.actions.append(f"{folder.name}: {rows.num_rows} rows of its data files stored again")


def mend_files(table: Examined, aside: Aside, done: Repaired) -> bool:
    """Restore fragments with a damaged file, as far as their rows are found; delete the other rows.

    Returns: whether there were any.
    """
    folder = table.folder
    wrong_numbers = folder.fragments_with([i for i, (kind, _) in table.contents.bad.items() if kind == "seq"])
    for number, fault in table.faults.items():
        if fault.deletions and folder.head is not None:
            metadata = {**folder.fragments[number].metadata.to_json(), "deletion_file": None}
            commits.update_fragment(commits.latest(folder.path), metadata)
            if fault.path.exists():
                aside.move(fault.path)
            done.actions.append(f"{folder.name}: list of deleted rows of fragment {number} given up")
    for number, fault in {**table.faults, **table.contents.faults}.items():
        if not fault.deletions:
            _rebuild(table, number, aside, done)
            if fault.path.exists():
                aside.move(fault.path)
    curable = from_older_versions(folder, _altered(table))
    altered = folder.fragments_with([] if curable is None else curable["_rowid"].to_pylist())
    for number in (wrong_numbers | altered) - set(table.faults) - set(table.contents.faults):
        _rebuild(table, number, aside, done)
    return bool(wrong_numbers or altered or table.faults or table.contents.faults)


def _altered(table: Examined) -> Numbers:
    """Row ids of the rows that decode and hold other values than were written."""
    bad = table.contents.bad.items()
    return np.array([row_id for row_id, (kind, _) in bad if kind in ("digest", "value")], np.int64)


def _rebuild(table: Examined, number: int, aside: Aside, done: Repaired) -> None:
    """Write a fragment's rows to a new file; delete the rows that no file on the disk has."""
    folder = table.folder
    head = folder.head
    if head is None:
        return
    wanted = head.row_ids(number)
    parts = [] if number in table.faults else list(FragmentRows(head, number, head.names))
    missing = np.union1d(np.setdiff1d(wanted, _row_ids(parts)), np.intersect1d(wanted, _altered(table)))
    found = from_older_versions(folder, missing)
    if found is not None:
        done.recovered[folder.name] += found.num_rows
        better = np.asarray(found["_rowid"])
        parts = [part.filter(pa.array(np.isin(part["_rowid"], better, invert=True))) for part in parts]
        parts.append(found)
    lost = np.setdiff1d(wanted, _row_ids(parts))
    dataset = commits.latest(folder.path)
    if len(lost):
        if number not in table.faults:
            _keep_columns(head, lost, aside)
        commits.delete(dataset, lost)
        where = folder.place(folder.data_path(number))
        done.remove(folder.name, dict.fromkeys(lost.tolist(), f"not readable in {where}"))
    if parts:
        rows = pa.concat_tables(parts)
        if folder.name == "experiences":
            at = rows.column_names.index("seq")
            field = TABLES["experiences"][0].field("seq")
            rows = rows.set_column(at, field, rows.column("_rowid").cast(pa.int64()))
        commits.replace_file(dataset, number, rows)
    done.actions.append(
        f"{folder.name}: fragment {number} written again with {len(wanted) - len(lost)} of {len(wanted)} rows"
        + (f"; lost {ranges_text(to_ranges(lost))}" if len(lost) else "")
    )


def _row_ids(parts: list[pa.Table]) -> Numbers:
    columns = [np.asarray(part.column("_rowid")).astype(np.int64) for part in parts]
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _keep_columns(head: Snapshot, lost: Numbers, aside: Aside) -> None:
    """Copy aside the readable columns of rows that do not decode as a whole."""
    found = {name: column_at(head, name, lost) for name in head.names}
    columns = {name: values for name, values in found.items() if values is not None}
    if columns:
        aside.keep("partial", pa.table({**columns, "_rowid": pa.array(lost)}))


def mend_order(folder: TableFolder, done: Repaired) -> None:
    """Let the rows be read in the order they were written."""
    if rows := put_in_order(folder.path):
        done.actions.append(f"{folder.name}: {rows} rows written again in the order of their row ids")


def mend_rows(table: Examined, aside: Aside, done: Repaired, extra: Mapping[int, str] | None = None) -> None:
    """Copy bad rows aside, then delete them."""
    folder = table.folder
    bad = {row_id: f"{kind}: {why}" for row_id, (kind, why) in table.contents.bad.items()}
    bad |= dict(extra or {})
    if not bad or folder.head is None:
        return
    dataset = commits.latest(folder.path)
    parts = [
        batch.filter(pa.array(np.isin(np.asarray(batch.column("_rowid")), list(bad))))
        for number in folder.fragments
        for batch in FragmentRows(folder.head, number, folder.head.names)
    ]
    rows = pa.concat_tables(parts)
    aside.keep(folder.name, rows)
    for row in rows.cast(_as_bytes(rows.schema)).to_pylist():
        done.kept[folder.name, row["_rowid"]] = {k: _to_json(v) for k, v in row.items() if k != "_rowid"}
    commits.delete(dataset, list(bad))
    done.remove(folder.name, bad)
    done.actions.append(
        f"{folder.name}: {len(bad)} rows copied aside and taken out: {ranges_text(to_ranges(bad))}"
    )


def _as_bytes(schema: pa.Schema) -> pa.Schema:
    """The schema with texts as bytes, because a damaged text may not be UTF-8."""
    kinds = {f.name: pa.binary() if pa.types.is_string(f.type) else f.type for f in schema}
    kinds |= {f.name: pa.list_(pa.binary()) for f in schema if f.type == pa.list_(pa.string())}
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


def _to_json(value: object) -> Json:
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    if isinstance(value, bytes):
        return value[:_EXCERPT_BYTES].decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
