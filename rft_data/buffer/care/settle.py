"""Repairs references between tables: adds events, so that lost groups and leases are never leased again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rft_data.buffer.care import commits
from rft_data.buffer.care.examine import Examined
from rft_data.buffer.care.lost_rows import Lost, write_lost
from rft_data.buffer.care.mend import append_numbered
from rft_data.buffer.care.ranges import gaps, ranges_text, to_numbers
from rft_data.buffer.care.references import ALL_CONSUMERS, References
from rft_data.buffer.care.repair_report import Repaired
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_table
from rft_data.core.rows import now
from rft_data.core.schema import EXPERIENCES, TABLES
from rft_data.core.stored_rows import LeaseEventRow
from rft_data.core.words import LeaseEvent

REASON = "lost in repair"


def settle_references(
    root: Path, references: References, tables: Mapping[str, Examined], done: Repaired
) -> None:
    """Append the events which ensure that lost groups are not leased, and none is trained twice."""
    events = [
        *_releases(references),
        *_retirements(references),
        *_without_payload(references, tables),
        *_unknown(references),
    ]
    if not events:
        return
    append_rows(root, "leases", events)
    done.groups += sorted(
        {group for event in events if event["kind"] == LeaseEvent.RETIRE for group in event["group_ids"]}
    )
    done.leases += sorted(
        {f"{e['run_id']}/{e['consumer']}/{e['step']}" for e in events if e["kind"] == LeaseEvent.RELEASE}
    )
    done.leases += ["/".join(map(str, key)) for key in references.no_lease]
    done.payloads += sorted(references.payloads)
    kinds = [event["kind"] for event in events]
    done.actions.append(
        f"leases: {kinds.count(LeaseEvent.RELEASE)} leases released, {len(done.groups)} groups retired"
    )


class _Event(LeaseEventRow):
    event_id: str


def _event(
    kind: LeaseEvent,
    run_id: str,
    consumer: str,
    group_ids: list[str],
    *,
    seqs: Sequence[int] = (),
    step: int = -1,
    epoch: int = 0,
    reason: str = REASON,
) -> _Event:
    event: LeaseEventRow = {
        "kind": kind,
        "run_id": run_id,
        "consumer": consumer,
        "step": step,
        "epoch": epoch,
        "version": -1,
        "seqs": list(seqs),
        "group_ids": group_ids,
        "reason": reason,
        "digest": content_id(list(seqs)),
    }
    return {"event_id": content_id("repair", now().isoformat(), event), **event}


def _releases(references: References) -> Iterator[_Event]:
    broken = [grant for grant, _, _ in references.orphan_leases]
    for grant in broken + [grant for pair in references.twice for grant in pair if grant not in broken]:
        yield _event(
            LeaseEvent.RELEASE,
            grant.run_id,
            grant.consumer,
            list(grant.group_ids),
            step=grant.step,
            epoch=grant.epoch,
            seqs=grant.seqs,
        )


def _retirements(references: References) -> Iterator[_Event]:
    """One event per group that lacks rows or does not exist, for all consumers."""
    for (run, group), absent in references.torn_groups.items():
        yield _event(LeaseEvent.RETIRE, run, ALL_CONSUMERS, [group], seqs=absent.tolist())
    unknown = {(grant.run_id, group) for grant, _, groups in references.orphan_leases for group in groups}
    for run, group in sorted(unknown):
        if (run, ALL_CONSUMERS, group) not in references.retired:
            yield _event(LeaseEvent.RETIRE, run, ALL_CONSUMERS, [group])


def _without_payload(references: References, tables: Mapping[str, Examined]) -> Iterator[_Event]:
    rows = {row for row_ids in references.payloads.values() for row in row_ids}
    if not rows:
        return
    owners = set()
    for batch in tables["experiences"].rows(["seq", "run_id", "group_id"]):
        owners |= {(r["run_id"], r["group_id"]) for r in batch.to_pylist() if r["seq"] in rows}
    for run, group in sorted(owners):
        if (run, ALL_CONSUMERS, group) not in references.retired:
            yield _event(LeaseEvent.RETIRE, run, ALL_CONSUMERS, [group])


def _unknown(references: References) -> Iterator[_Event]:
    """For each consumed step whose lease is lost: retire every group that it may have trained."""
    held = {(grant.run_id, grant.consumer, group) for grant in references.grants for group in grant.group_ids}
    for run, consumer in sorted({(run, consumer) for run, consumer, _ in references.no_lease}):
        until = max(
            references.consumed[f"{r}/{c}/{step}"]
            for r, c, step in references.no_lease
            if (r, c) == (run, consumer)
        )
        maybe = [
            group
            for (run_id, group), seqs in references.groups.items()
            if run_id == run
            and seqs
            and references.arrived[run_id, group] <= until
            and not {(run, consumer, group), (run, ALL_CONSUMERS, group)} & (held | references.retired)
        ]
        if maybe:
            yield _event(
                LeaseEvent.RETIRE,
                run,
                consumer,
                maybe,
                reason="may have been trained: its lease is lost",
            )


def settle_numbers(
    root: Path, table: Examined | None, references: References, lost: Lost, done: Repaired
) -> Lost:
    """Use up the row numbers that other tables still name, and record every lost row number."""
    seqs = lost.seqs
    if table is not None:
        recorded = to_numbers(lost.seqs)
        highest = max(references.named, int(recorded[-1]) if len(recorded) else -1)
        start = table.folder.next_row_id
        if start <= highest:
            append_numbered(commits.latest(table.folder.path), start, EXPERIENCES.empty_table(), highest + 1)
            done.skipped = ((start, highest),)
            done.actions.append(f"experiences: numbers {start}-{highest} skipped, never to be given again")
        end = max(start, highest + 1)
        seqs = gaps(table.contents.row_ids, end)
    known = Lost(
        seqs,
        tuple(sorted({*lost.leases, *("/".join(map(str, key)) for key in references.no_lease)})),
        tuple(sorted({*lost.payloads, *references.payloads})),
    )
    if known != lost:
        commits.step()
        write_lost(root, known)
        done.actions.append(f"lost_rows.json: {ranges_text(known.seqs) or 'no rows'} recorded as lost")
    return known


def append_rows(root: Path, name: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows to a small table, creating it if it is missing; `created_at` is filled in."""
    schema, key = TABLES[name]
    path = root / f"{name}.lance"
    table = to_table([{"created_at": now(), **row} for row in rows], schema)
    if path.is_dir():
        commits.append(commits.latest(path), table)
    else:
        commits.create(path, schema, key, table)
