"""Promises that hold after a kill: the reopened buffer against the outside ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.crash.outside import Facts, read_facts
from benchmarks.crash.rows import CONSUMER, RUN, group_rows
from rft_data.buffer import Buffer
from rft_data.core.codec import to_table
from rft_data.core.errors import IntegrityError
from rft_data.core.files import read_manifest
from rft_data.core.groups import Lease
from rft_data.core.schema import INCOMING
from rft_data.sampler.conservation import conservation
from rft_data.sampler.ledger import Ledger
from rft_data.weights import checkpoint


@dataclass
class Findings:
    """Findings of one check; every figure below `trained` is 0 in a sound buffer."""

    acked: int = 0
    """Rows acknowledged so far."""
    rows: int = 0
    trained: int = 0
    """Gradient steps that the newest checkpoint holds."""
    lost: int = 0
    """Acknowledged rows that are not there with their number and content."""
    duplicated: int = 0
    torn_groups: int = 0
    """Groups of which only some rows are stored, or leased, or that lie apart."""
    trained_twice: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.duplicated or self.torn_groups or self.trained_twice or self.faults)

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def check(root: Path) -> Findings:
    """Open the buffer as its owner, as a restarted run would, and compare."""
    facts = read_facts(root)
    found = Findings(acked=sum(map(len, facts.acked.values())), faults=list(facts.faults))
    with Buffer(root / "buffer") as buffer:
        check_rows(buffer, facts, found)
        ledger = Ledger(buffer, RUN, 0)
        leases = {lease.step: lease for lease in ledger.leases(CONSUMER)}
        check_leases(buffer, leases, facts, found)
        check_steps(root, leases, facts, found)
        counts = conservation(buffer, ledger, CONSUMER)
        found.faults += counts.faults
        if counts.residual:
            found.faults.append(f"{counts.residual} rollouts are not accounted for")
        check_events(buffer, root, facts, found)
        with Buffer(buffer.root, read_only=True) as reader:
            if reader.counts() != buffer.counts():
                found.faults.append("a reader counts other rows than the owner")
    return found


def check_rows(buffer: Buffer, facts: Facts, found: Findings) -> None:
    """Acknowledged rows are there, each once, whole groups, with the content that was sent."""
    stored = buffer.read("experiences")
    found.rows = stored.num_rows
    seqs, ids = stored.column("seq").to_pylist(), stored.column("experience_id").to_pylist()
    found.duplicated = len(ids) - len(set(ids))
    if seqs != list(range(len(seqs))):
        found.faults.append("row numbers are not dense and growing")
    places: dict[str, list[int]] = {}
    for place, group_id in enumerate(stored.column("group_id").to_pylist()):
        places.setdefault(group_id, []).append(place)
    unknown = places.keys() - facts.groups.keys()
    if unknown:
        found.faults.append(f"{len(unknown)} groups are stored that nobody sent")
    sent = {group_id: group_rows(facts.groups[group_id]) for group_id in places.keys() - unknown}
    bad = {group_id for group_id, rows in sent.items() if not _whole(places[group_id], len(rows))}
    found.torn_groups += len(bad)
    order = [group_id for group_id in places if group_id in sent and group_id not in bad]
    at = [place for group_id in order for place in places[group_id]]
    expected = to_table([row for group_id in order for row in sent[group_id]], INCOMING)
    other = _differing(stored.take(pa.array(at, pa.int64())), expected)
    changed = {ids[at[place]] for place in other}
    for group_id, acked in facts.acked.items():
        rows = group_rows(facts.groups[group_id])
        good = {(seqs[place], ids[place]) for place in places.get(group_id, ()) if ids[place] not in changed}
        found.lost += sum((seq, row.experience_id) not in good for seq, row in zip(acked, rows, strict=True))
    if changed:
        found.faults.append(f"{len(changed)} rows are stored with other content than was sent")
    sample = np.random.default_rng(len(seqs)).permutation(len(seqs))[:256].tolist()
    if buffer.take(sample).column("seq").to_pylist() != sample:  # a wrong digest raises
        found.faults.append("take gives other rows than asked for")


def _whole(places: Sequence[int], count: int) -> bool:
    return len(places) == count and places[-1] - places[0] == count - 1


def _differing(stored: pa.Table, expected: pa.Table) -> list[int]:
    """Places where two tables of INCOMING differ in any column but the time."""
    columns = [name for name in INCOMING.names if name != "created_at"]
    if stored.select(columns).equals(expected.select(columns)):
        return []
    pairs = zip(stored.select(columns).to_pylist(), expected.select(columns).to_pylist(), strict=True)
    return [place for place, (a, b) in enumerate(pairs) if a != b]


def check_leases(buffer: Buffer, leases: Mapping[int, Lease], facts: Facts, found: Findings) -> None:
    """Leases hold whole groups, none twice, and come again as they were delivered."""
    members = {
        row["group_id"]: row["seqs"] for row in buffer.read("groups", ["group_id", "seqs"]).to_pylist()
    }
    for lease in leases.values():
        if list(lease.seqs) != [seq for group_id in lease.group_ids for seq in members.get(group_id, ())]:
            found.torn_groups += 1
    times = Counter(group_id for lease in leases.values() for group_id in lease.group_ids)
    found.trained_twice += sum(n > 1 for n in times.values())
    for note in facts.trained:
        held = leases.get(note["step"])
        if held is None or (held.digest, list(held.seqs)) != (note["digest"], note["seqs"]):
            found.faults.append(f"the lease that step {note['step']} was trained on is not in the ledger")


def check_steps(root: Path, leases: Mapping[int, Lease], facts: Facts, found: Findings) -> None:
    """Each group counts in one gradient step, and a step taken again is the same step."""
    first: dict[int, dict[str, Any]] = {}
    for note in facts.trained:
        known = first.setdefault(note["step"], note)
        if known != note:
            found.faults.append(f"step {note['step']} was trained again on other rows")
    times = Counter(group_id for note in first.values() for group_id in note["group_ids"])
    found.trained_twice += sum(n > 1 for n in times.values())
    newest = checkpoint.newest(root / "checkpoints")
    held = [] if newest is None else newest.state["trained"]
    found.trained = len(held)
    if len(held) < facts.sealed:
        found.faults.append(f"checkpoint {facts.sealed} was complete; the newest is now {len(held)}")
    if [note["step"] for note in held] != list(range(len(held))):
        found.faults.append("the checkpoint does not hold each step once")
    if any(first.get(note["step"]) != note or note["step"] not in leases for note in held):
        found.faults.append("the checkpoint holds a step that was not taken so")
    lineage = Counter(group_id for note in held for group_id in note["group_ids"])
    found.trained_twice += sum(n > 1 for n in lineage.values())


def check_events(buffer: Buffer, root: Path, facts: Facts, found: Findings) -> None:
    """Versions and epochs only grow; consumption follows its checkpoint; weights are complete."""
    events = buffer.read("leases", ["kind", "epoch"]).to_pylist()
    epochs = [row["epoch"] for row in events if row["kind"] == "attach"]
    rows = buffer.read("versions", ["version", "path", "manifest_digest"]).to_pylist()
    # a hub that dies in the middle may record a version a second time; then the rows are neighbours
    versions = [v for v, _ in groupby(row["version"] for row in rows)]
    for name, stored, noted in (("epochs", epochs, facts.epochs), ("versions", versions, facts.versions)):
        if stored != sorted(set(stored)) or noted != sorted(set(noted)):
            found.faults.append(f"{name} do not grow: {stored[-8:]}, as seen outside {noted[-8:]}")
        if not set(noted) <= set(stored):
            found.faults.append(f"{name} seen outside are not stored: {sorted(set(noted) - set(stored))}")
    consumed = buffer.read("consumed", ["step", "checkpoint_step"]).to_pylist()
    steps = [row["step"] for row in consumed]
    newest = checkpoint.newest(root / "checkpoints")
    limit = 0 if newest is None else newest.step
    if len(steps) != len(set(steps)) or any(row["checkpoint_step"] > limit for row in consumed):
        found.faults.append("consumption is recorded twice, or without its checkpoint")
    published = [row["path"] for row in rows if row["path"]]
    for directory in (root / "weights").glob("v*"):
        try:
            read_manifest(directory)
        except IntegrityError as err:
            found.faults.append(f"a weight folder is there but not complete: {err}")
    if published and not (root / "weights" / published[-1]).is_dir():
        found.faults.append(f"the newest weights {published[-1]} are gone")
