"""Contradictions between tables, as findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rft_data.buffer.care.damage import Finding
from rft_data.buffer.care.examine import REPAIR, Examined
from rft_data.buffer.care.lost_rows import Lost
from rft_data.buffer.care.ranges import gaps, size, to_numbers, to_ranges
from rft_data.buffer.care.references import Grant, References
from rft_data.core.files import MANIFEST_FILE, file_digest


def reference_findings(references: References) -> Iterator[Finding]:
    """Findings about groups, leases, consumption, annotations and payloads."""
    for run in sorted({run for run, _ in references.torn_groups}):
        torn = {group: rows for (run_id, group), rows in references.torn_groups.items() if run_id == run}
        seqs = to_ranges(np.concatenate(list(torn.values())))
        what = f"{size(seqs)} rows of {len(torn)} groups"
        remedy = f"{REPAIR} retires the groups, so that they are never leased"
        yield Finding("group", "damage", "groups", f"run {run}", what, remedy, seqs, tuple(torn))
    if references.unjudged:
        remedy = f"{REPAIR} takes the groups out of the table; a resumed run judges their stored rows again"
        rows = to_ranges(references.unjudged.values())
        lost = f"what operators said about rows of {len(references.unjudged)} groups"
        yield Finding(
            "verdict", "damage", "groups", f"row {rows[0][0]}", lost, remedy, rows, tuple(references.unjudged)
        )
    for grant, absent, groups in references.orphan_leases:
        what = (
            f"{len(absent)} of its {len(grant.seqs)} rows, {len(groups)} of its {len(grant.group_ids)} groups"
        )
        remedy = f"{REPAIR} releases it; its sound groups can be leased again"
        yield Finding("lease", "damage", "leases", grant.name, what, remedy, to_ranges(absent), groups)
    for first, second in references.twice:
        yield _twice(first, second)
    for (run, consumer, group), times in references.reused.items():
        yield Finding(
            "double_lease",
            "note",
            "leases",
            f"{run}/{consumer}",
            "",
            f"nothing if the recipe replays groups; else this group was trained {times} times",
            ids=(group,),
        )
    for run, consumer, step in references.no_lease:
        yield Finding(
            "consumption",
            "damage",
            "consumed",
            f"{run}/{consumer}/{step}",
            "which rows this step was trained on",
            f"{REPAIR} retires for '{consumer}' every group it may have been, so that none is trained twice",
        )
    yield from _about_rows(references)


def _twice(first: Grant, second: Grant) -> Finding:
    return Finding(
        "double_lease",
        "damage",
        "leases",
        first.name,
        "which of the two was trained",
        f"{REPAIR} releases both: no checkpoint holds the step",
        ids=first.group_ids + second.group_ids,
    )


def _about_rows(references: References) -> Iterator[Finding]:
    if len(references.strays):
        rows = to_ranges(references.strays)
        remedy = f"{REPAIR} copies them to `quarantine` and takes them out"
        yield Finding(
            "annotation", "damage", "annotations", f"row {rows[0][0]}", "what was judged", remedy, rows
        )
    if len(references.unplaced):
        seqs = to_ranges(references.unplaced)
        remedy = "nothing: a number that was annotated is never given to another row"
        yield Finding("annotation", "note", "annotations", f"seq {seqs[0][0]}", "", remedy, seqs)
    for name, row_ids in references.payloads.items():
        yield Finding(
            "payload",
            "damage",
            "payloads",
            name,
            f"an image or other value of {len(row_ids)} rows",
            f"put it back with Buffer.add_payload, or {REPAIR} retires the groups of these rows",
            to_ranges(row_ids),
            (name,),
        )


def number_findings(table: Examined, lost: Lost, named: int) -> Iterator[Finding]:
    """Findings about row numbers of experiences: missing ones that are not recorded, and repeated ones.

    `named`: the highest row number that any table mentions; -1 when none does.
    """
    present = table.contents.row_ids
    unreadable = to_numbers(pair for ids in table.lost_rows().values() for pair in to_ranges(ids))
    counter = table.folder.next_row_id
    recorded = to_numbers(lost.seqs)
    missing = np.setdiff1d(to_numbers(gaps(present, counter)), np.concatenate([recorded, unreadable]))
    if len(missing):
        rows = to_ranges(missing)
        remedy = f"{REPAIR} records them as lost, so that the buffer opens again"
        yield Finding(
            "lost_rows", "damage", "experiences", f"seq {rows[0][0]}", f"{size(rows)} rows", remedy, rows
        )
    back = to_ranges(recorded[table.contents.has(recorded)])
    if back:
        remedy = f"{REPAIR} takes them off the record of lost rows"
        yield Finding("lost_rows", "damage", "experiences", f"seq {back[0][0]}", "", remedy, back)
    highest = max(named, int(recorded[-1]) if len(recorded) else -1)
    if counter <= highest:
        yield Finding(
            "row_counter",
            "damage",
            "experiences",
            f"seq {counter}",
            "rows of commits that are gone, which other tables still name",
            f"{REPAIR} skips their numbers, so that no verdict or lease meets another row",
            ((counter, highest),),
        )


def weight_findings(root: Path, table: Examined) -> Iterator[Finding]:
    """Findings about the newest published weights of each run, if the buffer is in the run's folder."""
    weights = root.parent / "weights"
    newest: dict[str, tuple[int, str, str]] = {}
    """Run id to version, path and manifest digest."""
    for batch in table.rows(["run_id", "version", "path", "manifest_digest"]):
        newest |= {
            row["run_id"]: (row["version"], row["path"], row["manifest_digest"])
            for row in batch.to_pylist()
            if row["path"]
        }
    for run, (version, path, digest) in newest.items() if weights.is_dir() else ():
        manifest = weights / path / MANIFEST_FILE
        if not manifest.is_file() or file_digest(manifest) != digest:
            yield Finding(
                "weights",
                "note",
                "versions",
                f"{run} version {version}",
                f"the weights in {manifest.parent}, or their manifest",
                "nothing in the buffer; a resumed run publishes its weights again",
            )
