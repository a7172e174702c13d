"""References between the tables: do groups and leases name stored rows, and has each step one lease?

Checked in the order in which a run writes: experiences, annotations, groups, leases, consumption.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow.compute as pc

from rft_data.buffer.care.contents import key_hash
from rft_data.buffer.care.examine import Examined
from rft_data.buffer.care.lost_rows import Lost
from rft_data.buffer.care.ranges import Numbers, among
from rft_data.core.words import LeaseEvent

ALL_CONSUMERS = ""
"""The consumer in a `retire` event that applies to all consumers."""
_EVENT = ["kind", "run_id", "consumer", "step", "epoch", "seqs", "group_ids"]


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that was granted and not released."""

    run_id: str
    consumer: str
    step: int
    epoch: int
    seqs: tuple[int, ...]
    group_ids: tuple[str, ...]

    @property
    def name(self) -> str:
        """`run/consumer/step`, the key of `consumed`."""
        return f"{self.run_id}/{self.consumer}/{self.step}"


@dataclass(slots=True)
class References:
    """Groups, leases and consumption in their newest state, and their contradictions with the rows."""

    groups: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """(run, group id) to the row numbers in the newest row of the group."""
    arrived: dict[tuple[str, str], datetime] = field(default_factory=dict)
    group_rows: dict[tuple[str, str], int] = field(default_factory=dict)
    """(run, group id) to the row id of its newest row in `groups`."""
    grants: list[Grant] = field(default_factory=list)
    consumed: dict[str, datetime] = field(default_factory=dict)
    """Lease name to when it was recorded as part of a checkpoint."""
    retired: set[tuple[str, str, str]] = field(default_factory=set)
    """(run, consumer, group id); `ALL_CONSUMERS` for all consumers."""
    torn_groups: dict[tuple[str, str], Numbers] = field(default_factory=dict)
    """Groups that may still be leased, and their missing rows."""
    orphan_leases: list[tuple[Grant, Numbers, tuple[str, ...]]] = field(default_factory=list)
    """Leases not consumed, with the rows and groups that do not exist."""
    twice: list[tuple[Grant, Grant]] = field(default_factory=list)
    """Two leases of one step."""
    reused: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(run, consumer, group id) leased more than once, and how often."""
    no_lease: list[tuple[str, str, int]] = field(default_factory=list)
    """(run, consumer, step) that were consumed, without their lease."""
    strays: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    """Row ids of annotations about another row than the one with their number."""
    unplaced: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    """Row numbers of annotations that are not stored."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Groups with rows to train on that no annotation judges, and the row id of their row in `groups`."""
    named: int = -1
    """The highest row number that any table but `experiences` mentions; -1 when none does."""
    payloads: dict[str, list[int]] = field(default_factory=dict)
    """Payload ids that are not stored, and the experiences that refer to them."""


def read_references(tables: Mapping[str, Examined], lost: Lost) -> References:
    """Read the small tables, and compare them with each other and with the experiences."""
    references = References()
    _read_groups(references, tables)
    _read_leases(references, tables)
    _read_consumed(references, tables)
    _check_groups(references, tables)
    _check_leases(references, tables)
    _check_annotations(references, tables)
    _check_payloads(references, tables)
    _find_named(references, tables)
    known = set(lost.leases)
    references.no_lease = [key for key in references.no_lease if "/".join(map(str, key)) not in known]
    references.payloads = {
        name: rows for name, rows in references.payloads.items() if name not in lost.payloads
    }
    return references


def _rows(tables: Mapping[str, Examined], name: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    if name in tables:
        for batch in tables[name].rows(columns):
            yield from batch.to_pylist()


def _read_groups(references: References, tables: Mapping[str, Examined]) -> None:
    for row in _rows(tables, "groups", ["run_id", "group_id", "outcome", "seqs", "created_at"]):
        key = (row["run_id"], row["group_id"])
        references.groups[key] = tuple(row["seqs"])
        references.arrived[key] = row["created_at"]
        references.group_rows[key] = row["_rowid"]


def _read_leases(references: References, tables: Mapping[str, Examined]) -> None:
    live: dict[tuple[str, str, int], Grant] = {}
    uses: Counter[tuple[str, str, str]] = Counter()
    for row in _rows(tables, "leases", _EVENT):
        run, consumer, groups = row["run_id"], row["consumer"], row["group_ids"]
        key = (run, consumer, row["step"])
        if row["kind"] == LeaseEvent.GRANT:
            grant = Grant(run, consumer, row["step"], row["epoch"], tuple(row["seqs"]), tuple(groups))
            if key in live:
                references.twice.append((live[key], grant))
            live[key] = grant
            uses.update((run, consumer, group) for group in groups)
        elif row["kind"] == LeaseEvent.RELEASE:
            live.pop(key, None)
            references.twice = [pair for pair in references.twice if pair[0].name != "/".join(map(str, key))]
            uses.subtract((run, consumer, group) for group in groups)
        elif row["kind"] == LeaseEvent.RETIRE:
            references.retired.update((run, consumer, group) for group in groups)
    references.grants = list(live.values())
    references.reused = {key: n for key, n in uses.items() if n > 1}


def _read_consumed(references: References, tables: Mapping[str, Examined]) -> None:
    granted = {grant.name for grant in references.grants}
    for row in _rows(tables, "consumed", ["run_id", "consumer", "step", "created_at"]):
        key = (row["run_id"], row["consumer"], row["step"])
        name = "/".join(map(str, key))
        references.consumed[name] = row["created_at"]
        if name not in granted:
            references.no_lease.append(key)


def _check_groups(references: References, tables: Mapping[str, Examined]) -> None:
    for (run, group), seqs in references.groups.items():
        absent = _absent(tables, seqs)
        if len(absent) and (run, ALL_CONSUMERS, group) not in references.retired:
            references.torn_groups[run, group] = absent


def _check_leases(references: References, tables: Mapping[str, Examined]) -> None:
    unknown = {
        group
        for g in references.grants
        for group in g.group_ids
        if (g.run_id, group) not in references.groups
    }
    if unknown:
        for row in _rows(tables, "experiences", ["group_id"]):
            unknown.discard(row["group_id"])
    for grant in references.grants:
        absent = _absent(tables, grant.seqs)
        groups = tuple(group for group in grant.group_ids if group in unknown)
        if (len(absent) or groups) and grant.name not in references.consumed:
            references.orphan_leases.append((grant, absent, groups))
    references.twice = [(a, b) for a, b in references.twice if a != b and a.name not in references.consumed]


def _check_annotations(references: References, tables: Mapping[str, Examined]) -> None:
    if "annotations" not in tables:
        return
    strays, unplaced, judged = [references.strays], [references.unplaced], [references.unplaced]
    experiences = tables.get("experiences")
    for batch in tables["annotations"].rows(["seq", "experience_id"]):
        seqs = np.asarray(batch.column("seq"))
        row_ids = np.asarray(batch.column("_rowid")).astype(np.int64)
        judged.append(seqs)
        if experiences is None:
            unplaced.append(seqs)
            continue
        there = experiences.contents.has(seqs)
        unplaced.append(seqs[~there])
        ids = batch.column("experience_id").to_pylist()
        hashes = np.fromiter((key_hash(text) for text in ids), np.uint64, len(ids))
        strays.append(row_ids[there & (experiences.contents.key_hashes(seqs) != hashes)])
    references.strays, references.unplaced = np.concatenate(strays), np.unique(np.concatenate(unplaced))
    known = np.unique(np.concatenate(judged))
    for key, group_seqs in references.groups.items():
        torn = key in references.torn_groups or (key[0], ALL_CONSUMERS, key[1]) in references.retired
        if group_seqs and not torn and not among(np.array(group_seqs, np.int64), known).all():
            references.unjudged[key[1]] = references.group_rows[key]


def _check_payloads(references: References, tables: Mapping[str, Examined]) -> None:
    referring: defaultdict[str, list[int]] = defaultdict(list)
    if "experiences" in tables:
        for batch in tables["experiences"].rows(["payloads"]):
            lists = batch.column("payloads").combine_chunks()
            if len(pc.list_flatten(lists)):
                for row in batch.to_pylist():
                    for name in row["payloads"]:
                        referring[name].append(row["_rowid"])
    if referring:
        for row in _rows(tables, "payloads", ["payload_id"]):
            referring.pop(row["payload_id"], None)
    references.payloads = dict(referring)


def _find_named(references: References, tables: Mapping[str, Examined]) -> None:
    named = [seq for seqs in references.groups.values() for seq in seqs]
    named += [seq for row in _rows(tables, "leases", ["seqs"]) for seq in row["seqs"]]
    named += [row["rows"] - 1 for name in ("tags", "versions") for row in _rows(tables, name, ["rows"])]
    if len(references.unplaced):
        named.append(int(references.unplaced[-1]))
    references.named = max(named, default=-1)


def _absent(tables: Mapping[str, Examined], seqs: tuple[int, ...]) -> Numbers:
    wanted = np.array(seqs, np.int64)
    if "experiences" not in tables:
        return wanted
    return wanted[~tables["experiences"].contents.has(wanted)]
