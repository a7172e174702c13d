"""Mending what tables say about each other: events that keep lost groups and leases from being handed out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rft_data.buffer.care import commits
from rft_data.buffer.care.examine import Examined
from rft_data.buffer.care.lost_rows import Lost, write_lost
from rft_data.buffer.care.mend import append_numbered
from rft_data.buffer.care.ranges import gaps, numbers_of, ranges_text
from rft_data.buffer.care.references import NOBODY, Books
from rft_data.buffer.care.repair_report import Repaired
from rft_data.core.codec import to_table
from rft_data.core.rows import content_id, now
from rft_data.core.schema import EXPERIENCES, TABLES
from rft_data.core.words import LeaseEvent

REASON = "lost in repair"


def settle_books(root: Path, books: Books, tables: Mapping[str, Examined], done: Repaired) -> None:
    """Append the events that keep what is lost from ever being leased or trained twice."""
    events = [*_releases(books), *_retirements(books), *_without_payload(books, tables), *_unknown(books)]
    if not events:
        return
    append_rows(root, "leases", events)
    done.groups += sorted(
        {group for event in events if event["kind"] == LeaseEvent.RETIRE for group in event["group_ids"]}
    )
    done.leases += sorted(
        {f"{e['run_id']}/{e['consumer']}/{e['step']}" for e in events if e["kind"] == LeaseEvent.RELEASE}
    )
    done.leases += ["/".join(map(str, key)) for key in books.no_lease]
    done.payloads += sorted(books.payloads)
    kinds = [event["kind"] for event in events]
    done.actions.append(
        f"leases: {kinds.count(LeaseEvent.RELEASE)} leases released, {len(done.groups)} groups retired"
    )


def _event(kind: LeaseEvent, run_id: str, consumer: str, **changes: Any) -> dict[str, Any]:
    event = {
        "kind": kind,
        "run_id": run_id,
        "consumer": consumer,
        "step": -1,
        "epoch": 0,
        "version": -1,
        "seqs": [],
        "group_ids": [],
        "reason": REASON,
        **changes,
    }
    event["digest"] = content_id(event["seqs"])
    return {"event_id": content_id("repair", now().isoformat(), event), **event}


def _releases(books: Books) -> Iterator[dict[str, Any]]:
    broken = [grant for grant, _, _ in books.orphan_leases]
    for grant in broken + [grant for pair in books.twice for grant in pair if grant not in broken]:
        yield _event(
            LeaseEvent.RELEASE,
            grant.run_id,
            grant.consumer,
            step=grant.step,
            epoch=grant.epoch,
            seqs=list(grant.seqs),
            group_ids=list(grant.group_ids),
        )


def _retirements(books: Books) -> Iterator[dict[str, Any]]:
    """One event per group that lacks rows or does not exist, for all consumers."""
    for (run, group), absent in books.torn_groups.items():
        yield _event(LeaseEvent.RETIRE, run, NOBODY, seqs=absent.tolist(), group_ids=[group])
    unknown = {(grant.run_id, group) for grant, _, groups in books.orphan_leases for group in groups}
    for run, group in sorted(unknown):
        if (run, NOBODY, group) not in books.retired:
            yield _event(LeaseEvent.RETIRE, run, NOBODY, group_ids=[group])


def _without_payload(books: Books, tables: Mapping[str, Examined]) -> Iterator[dict[str, Any]]:
    rows = {row for row_ids in books.payloads.values() for row in row_ids}
    if not rows:
        return
    owners = set()
    for batch in tables["experiences"].rows(["seq", "run_id", "group_id"]):
        owners |= {(r["run_id"], r["group_id"]) for r in batch.to_pylist() if r["seq"] in rows}
    for run, group in sorted(owners):
        if (run, NOBODY, group) not in books.retired:
            yield _event(LeaseEvent.RETIRE, run, NOBODY, group_ids=[group])


def _unknown(books: Books) -> Iterator[dict[str, Any]]:
    """Of a consumed step whose lease is gone: every group it may have been, for its consumer."""
    held = {(grant.run_id, grant.consumer, group) for grant in books.grants for group in grant.group_ids}
    for run, consumer in sorted({(run, consumer) for run, consumer, _ in books.no_lease}):
        until = max(
            books.consumed[f"{r}/{c}/{step}"] for r, c, step in books.no_lease if (r, c) == (run, consumer)
        )
        maybe = [
            group
            for (of, group), seqs in books.groups.items()
            if of == run
            and seqs
            and books.arrived[of, group] <= until
            and not {(run, consumer, group), (run, NOBODY, group)} & (held | books.retired)
        ]
        if maybe:
            yield _event(
                LeaseEvent.RETIRE,
                run,
                consumer,
                group_ids=maybe,
                reason="may have been trained: its lease is lost",
            )


def settle_numbers(root: Path, table: Examined | None, books: Books, lost: Lost, done: Repaired) -> Lost:
    """Use up the numbers that other tables still name, and write down every number that is gone for good."""
    seqs = lost.seqs
    if table is not None:
        recorded = numbers_of(lost.seqs)
        highest = max(books.named, int(recorded[-1]) if len(recorded) else -1)
        start = table.folder.next_row_id
        if start <= highest:
            append_numbered(commits.latest(table.folder.path), start, EXPERIENCES.empty_table(), highest + 1)
            done.skipped = ((start, highest),)
            done.actions.append(f"experiences: numbers {start}-{highest} skipped, never to be given again")
        end = max(start, highest + 1)
        seqs = gaps(table.contents.row_ids, end)
    known = Lost(
        seqs,
        tuple(sorted({*lost.leases, *("/".join(map(str, key)) for key in books.no_lease)})),
        tuple(sorted({*lost.payloads, *books.payloads})),
    )
    if known != lost:
        write_lost(root, known)
        done.actions.append(f"lost_rows.json: {ranges_text(known.seqs) or 'no rows'} recorded as lost")
    return known


def append_rows(root: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a small table, which is created if need be; `created_at` is filled in."""
    schema, key = TABLES[name]
    path = root / f"{name}.lance"
    dataset = commits.latest(path) if path.is_dir() else commits.create(path, schema, key)
    commits.append(dataset, to_table([{"created_at": now(), **row} for row in rows], schema))
