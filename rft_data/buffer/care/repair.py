"""Repairs a damaged buffer: moves damage aside, restores what it can find, and records what is lost.

Nothing is deleted, and a second repair finds nothing to do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rft_data.buffer.care.aside import Aside
from rft_data.buffer.care.damage import Report
from rft_data.buffer.care.examine import Examined, examine_each
from rft_data.buffer.care.folder import TableFolder
from rft_data.buffer.care.lost_rows import read_lost
from rft_data.buffer.care.mend import mend_files, mend_manifests, mend_order, mend_rows
from rft_data.buffer.care.ranges import to_numbers
from rft_data.buffer.care.references import read_references
from rft_data.buffer.care.repair_report import Repaired
from rft_data.buffer.care.settle import append_rows, settle_numbers, settle_references
from rft_data.buffer.care.verify import examine_all, judged, report_on, verify
from rft_data.buffer.durability import fsync_table
from rft_data.buffer.location import LocalFolder, owner_pid
from rft_data.buffer.unfinished import begun_anew, mark, unfinished, unmark
from rft_data.core.errors import IntegrityError
from rft_data.core.failpoints import failpoint
from rft_data.core.files import write_text
from rft_data.core.schema import SCHEMA_VERSION

REPORT_FILE = "report.json"
_TAKES_ROWS = ("missing_file", "empty_file", "cut_file", "unreadable_rows", "digest", "value", "duplicate")
"""Kinds of findings whose rows a repair removes, unless it finds them elsewhere."""


def repair(root: Path, *, dry_run: bool = False) -> Repaired:
    """Repair the buffer at `root`, so that it opens again and has only rows that match their digests.

    `dry_run` only lists what would be done. The report is also written into the repair's folder.
    Raises: MissingFileError if there is no buffer; BusyError while it has an owner; IntegrityError if it
        was written under another schema version, or if damage is left after the repair.
    """
    root = root.resolve()
    before = verify(root)
    _refuse_fatal(before)
    done = Repaired(root, dry_run, before.damage)
    if dry_run:
        done.actions += [f"{f.table or 'buffer'}: {f.place}: {f.remedy}" for f in before.damage]
        for finding in before.damage:
            if finding.kind in _TAKES_ROWS:
                done.remove(finding.table, dict.fromkeys(to_numbers(finding.rows).tolist(), finding.kind))
        return done
    if before.of("schema_version") and before.rows and not owner_pid(root):
        # every table that opens has this version's columns: _refuse_fatal has checked that
        write_text(root / "schema_version", f"{SCHEMA_VERSION}\n")
        done.actions.append("schema_version: written again, the tables have this version's columns")
    folder = LocalFolder(root, read_only=False, repairing=True)
    try:
        if before.damaged:
            _mend(root, done, [f.kind for f in before.damage])
        after = report_on(root, deep=True, tried=True) if done.changed else before
    finally:
        folder.close()
    if after.damaged:
        raise IntegrityError(
            f"buffer {root} is still damaged after the repair: {after.damage[0].kind} in "
            f"'{after.damage[0].table}' {after.damage[0].place}. What was done is in {done.folder}; "
            "run the repair again."
        )
    return done


def _refuse_fatal(report: Report) -> None:
    fatal = [finding for finding in report.findings if finding.severity == "fatal"]
    if fatal:
        first = fatal[0]
        raise IntegrityError(
            f"buffer {report.root} cannot be repaired: {first.kind} {first.place}: {first.lost}; "
            f"{first.remedy}."
        )


def _mend(root: Path, done: Repaired, kinds: list[str]) -> None:
    aside, started = Aside(root), time.time() - 1
    if unfinished(root):
        done.actions.append("an interrupted repair is finished")
    anew = begun_anew(root)
    mark(root, anew)
    names = [path.stem for path in sorted(root.glob("*.lance"))]
    tried = "unreadable_rows" not in kinds  # verify has decoded all these files
    for table in examine_each([TableFolder(root, name) for name in names], deep=True, tried=tried):
        if table.folder.head is None:
            anew.add(table.folder.name)
            mark(root, anew)
        mend_manifests(table.folder, aside, done)
    tried = tried and not anew
    for table in examine_each([TableFolder(root, name) for name in names], deep=True, tried=tried):
        again = table
        if mend_files(table, aside, done):
            (again,) = examine_each([TableFolder(root, table.folder.name)], deep=True, tried=True)
        mend_rows(again, aside, done)
        mend_order(again.folder, done)
    tables = examine_all(root, deep=False, tried=True)
    lost = read_lost(root)
    references = read_references(tables, lost)
    if len(references.strays):
        strays = dict.fromkeys(references.strays.tolist(), "annotation: about another row")
        mend_rows(tables["annotations"], aside, done, strays)
    if references.unjudged and (judged(tables) or "annotations" in anew):
        reason = "verdict: no annotation on its rows; judged again when its run resumes"
        mend_rows(tables["groups"], aside, done, dict.fromkeys(references.unjudged.values(), reason))
    settle_references(root, references, tables, done)
    settle_numbers(root, tables.get("experiences"), references, lost, done)
    done.experience_ids = tuple(_lost_ids(tables, done))
    _store_report(root, aside, done)
    for path in root.glob("*.lance"):
        fsync_table(path, started)
    failpoint("repair.step")
    unmark(root)


def _lost_ids(tables: dict[str, Examined], done: Repaired) -> Iterator[str]:
    """Ids of the lost experiences that annotations know."""
    lost = [*done.removed.get("experiences", {}), *(n for a, b in done.skipped for n in range(a, b + 1))]
    if not lost or "annotations" not in tables:
        return
    seen: set[str] = set()
    for batch in tables["annotations"].rows(["seq", "experience_id"]):
        ids = batch.column("experience_id").to_pylist()
        for place in np.flatnonzero(np.isin(np.asarray(batch.column("seq")), lost)).tolist():
            if ids[place] not in seen:
                seen.add(ids[place])
                yield ids[place]


def _store_report(root: Path, aside: Aside, done: Repaired) -> None:
    """Write the report to the repair's folder, and to `quarantine` a summary and one row per lost row."""
    if not done.changed:
        return
    aside.path.mkdir(parents=True, exist_ok=True)
    done.folder = aside.path
    rows: list[dict[str, object]] = [
        {
            "experience_id": str(done.kept.get((name, row_id), {}).get("experience_id", "")),
            "reason": f"repair: {name}: {why}",
            "row": done.kept.get((name, row_id), {"row_id": row_id}),
        }
        for name, removed in done.removed.items()
        for row_id, why in removed.items()
    ]
    summary = {"experience_id": "", "reason": "repair", "row": done.as_json()}
    append_rows(root, "quarantine", [*rows, summary])
    write_text(aside.path / REPORT_FILE, json.dumps(done.as_json(), indent=2))
