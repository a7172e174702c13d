"""The state of every rollout of a run, for one consumer; counted from the stored tables alone.

Each row is in exactly one state. Reuse (one row in several trained leases) is counted separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rft_data.buffer import Buffer
from rft_data.core.errors import IntegrityError
from rft_data.core.filters import And, Compare, Filter, In
from rft_data.core.groups import Lease
from rft_data.core.stored_rows import AnnotationRow, ExperienceRow, GroupRow
from rft_data.core.words import ADMITTED, GroupOutcome, GroupState, RowSource, Verdict
from rft_data.sampler.awaiting import REWARD_COLUMNS, missing_rewards
from rft_data.sampler.ledger import Ledger

_ROWS_PER_FILTER = 10_000


@dataclass
class Conservation:
    """Rollout rows of one run by state, as one consumer sees them (promise I4)."""

    produced: int = 0
    """Rollouts stored."""
    trained: int = 0
    """Rows in a lease whose gradient step a checkpoint holds; each row once."""
    leased: int = 0
    """Rows in a lease that no checkpoint holds yet."""
    pending: int = 0
    """Kept by the operators and not leased yet."""
    filtered: Counter[str] = field(default_factory=Counter)
    """Dropped, by operator."""
    quarantined: int = 0
    """Set aside because an operator failed on the row."""
    unscored: int = 0
    """Without a reward, and not kept."""
    stale: int = 0
    """Past the staleness bound: never to be trained."""
    cancelled: int = 0
    """Rows in a group that failed, was cancelled, or was set aside (by a resume or a repair)."""
    unjudged: int = 0
    """Stored, but their group is not closed yet."""
    awaiting: int = 0
    """Stored, and their group waits for delayed rewards."""
    lost: int = 0
    """Leased, and removed by a later repair; not among the rollouts stored."""
    reused: int = 0
    """Gradient uses beyond the first."""
    faults: list[str] = field(default_factory=list)
    """Contradictions between the tables; empty in a sound buffer."""

    @property
    def residual(self) -> int:
        """Rows not accounted for; 0 in a sound buffer."""
        used = (self.trained, self.leased, self.pending)
        waiting = (self.unjudged, self.awaiting)
        gone = (self.filtered.total(), self.quarantined, self.unscored, self.stale, self.cancelled)
        return self.produced - sum(used) - sum(waiting) - sum(gone)

    def as_dict(self) -> dict[str, object]:
        """The counts as JSON values."""
        return {**asdict(self), "filtered": dict(self.filtered), "residual": self.residual}


def conservation(buffer: Buffer, ledger: Ledger, consumer: str, others: Sequence[str] = ()) -> Conservation:
    """Count the run's rollouts by state, and list contradictions between the tables.

    `others`: runs whose groups this one trains on too; their rollouts are counted with its own.
    """
    counts = Conservation()
    mine = In("run_id", (ledger.run_id, *others))
    groups = {row["group_id"]: row for row in buffer.read("groups", where=mine).to_pylist()}
    rows = _rollouts(buffer, mine)
    rows |= _readmitted(buffer, groups, rows.keys())
    _fill_delayed_rewards(rows, groups)
    verdicts = _own_verdicts(buffer)
    uses = _uses(ledger, consumer, counts)
    retired = ledger.retired(consumer)
    lost = buffer.lost_rows()
    counts.lost = sum(uses.pop(seq, None) is not None for seq in list(uses) if seq in lost)
    counts.produced = len(rows)
    not_closed = []
    for seq, row in rows.items():
        group = groups.get(row["group_id"])
        if seq in uses:
            trained = uses.pop(seq)
            counts.trained += trained > 0
            counts.leased += trained == 0
            counts.reused += max(trained - 1, 0)
        elif group is None:
            not_closed.append(seq)
        else:
            _count_closed(counts, row, group, retired.get(row["group_id"]), verdicts.get(seq))
    counts.awaiting = _count_awaiting(buffer, not_closed)
    counts.unjudged = len(not_closed) - counts.awaiting
    if uses:
        counts.faults.append(
            f"leases name {len(uses)} rows that are not rollouts of the run, first {min(uses)}"
        )
    _check_whole_groups(ledger.leases(consumer), groups, lost, counts)
    return counts


def _fill_delayed_rewards(rows: Mapping[int, ExperienceRow], groups: Mapping[str, GroupRow]) -> None:
    """Fill in rewards that came as feedback; only the table `groups` has them."""
    stored: dict[str, list[int]] = {}
    for seq in sorted(rows):
        stored.setdefault(rows[seq]["group_id"], []).append(seq)
    for name, seqs in stored.items():
        rewards = groups[name]["rewards"] if name in groups else ()
        if len(rewards) == len(seqs):  # else a repair removed some of them
            for seq, reward in zip(seqs, rewards, strict=True):
                rows[seq]["reward"] = reward


def _count_awaiting(buffer: Buffer, seqs: Sequence[int]) -> int:
    """Number of these rows whose group waits for delayed rewards."""
    members: dict[str, list[ExperienceRow]] = {}
    for start in range(0, len(seqs), _ROWS_PER_FILTER):
        where = In("seq", tuple(seqs[start : start + _ROWS_PER_FILTER]))
        for row in buffer.read("experiences", [*REWARD_COLUMNS, "group_id"], where).to_pylist():
            members.setdefault(row["group_id"], []).append(row)
    return sum(len(group) for group in members.values() if missing_rewards(group))


def _rollouts(buffer: Buffer, mine: In) -> dict[int, ExperienceRow]:
    return _rows(buffer, And((mine, Compare("source", "eq", RowSource.ROLLOUT))))


def _rows(buffer: Buffer, where: Filter) -> dict[int, ExperienceRow]:
    rows = buffer.read("experiences", ["seq", "group_id", "reward"], where).to_pylist()
    return {row["seq"]: row for row in rows}


def _readmitted(
    buffer: Buffer, groups: Mapping[str, GroupRow], known: Collection[int]
) -> dict[int, ExperienceRow]:
    """Rows of the groups that are no rollouts of these runs: experts' rows, and readmitted rows."""
    seqs = sorted({seq for group in groups.values() for seq in group["seqs"]}.difference(known))
    found: dict[int, ExperienceRow] = {}
    for start in range(0, len(seqs), _ROWS_PER_FILTER):
        found |= _rows(buffer, In("seq", tuple(seqs[start : start + _ROWS_PER_FILTER])))
    return found


def _own_verdicts(buffer: Buffer) -> dict[int, AnnotationRow]:
    """The newest verdict on each row by the operator list that judged it first, which is its run's."""
    columns = ["seq", "pipeline_hash", "verdict", "dropped_by"]
    own: dict[int, str] = {}
    verdicts: dict[int, AnnotationRow] = {}
    for batch in buffer.batches("annotations", columns):
        for row in batch.to_pylist():
            if own.setdefault(row["seq"], row["pipeline_hash"]) == row["pipeline_hash"]:
                verdicts[row["seq"]] = row
    return verdicts


def _uses(ledger: Ledger, consumer: str, counts: Conservation) -> dict[int, int]:
    """For every leased row, the number of its training steps that a checkpoint holds."""
    uses: dict[int, int] = {}
    times: Counter[str] = Counter()
    for lease in ledger.leases(consumer):
        trained = ledger.is_consumed(lease)
        times.update(lease.group_ids)
        for seq in lease.seqs:
            uses[seq] = uses.get(seq, 0) + trained
    over = [group_id for group_id, n in times.items() if n > ledger.max_uses]
    if over:
        counts.faults.append(
            f"{len(over)} groups are leased more than {ledger.max_uses} times, first '{over[0]}'"
        )
    return uses


def _count_closed(
    counts: Conservation,
    row: ExperienceRow,
    group: GroupRow,
    retired: str | None,
    verdict: AnnotationRow | None,
) -> None:
    """Count a row of a closed group that is in no lease; `retired`: why its group is retired, if it is."""
    if group["outcome"] != GroupOutcome.ARRIVED:
        counts.cancelled += 1
    elif row["seq"] in group["seqs"]:
        counts.pending += retired is None
        counts.stale += retired == GroupState.STALE
        counts.cancelled += retired not in (None, GroupState.STALE)
    elif verdict is not None and verdict["verdict"] == Verdict.QUARANTINED:
        counts.quarantined += 1
    elif row["reward"] is None:
        counts.unscored += 1
    elif verdict is not None and verdict["verdict"] == Verdict.DROPPED:
        counts.filtered[verdict["dropped_by"]] += 1
    elif group["dropped_by"]:  # readmitted since, with feedback, by the same operators
        counts.filtered[group["dropped_by"]] += 1
    else:
        counts.faults.append(f"row {row['seq']} is kept but not among the rows of its group")


def _check_whole_groups(
    leases: list[Lease], groups: Mapping[str, GroupRow], lost: set[int], counts: Conservation
) -> None:
    for lease in leases:
        if lost.intersection(lease.seqs):
            continue
        whole = [
            seq
            for group_id in lease.group_ids
            for seq in (groups[group_id]["seqs"] if group_id in groups else ())
        ]
        if whole != list(lease.seqs):
            counts.faults.append(f"lease {lease.consumer}/{lease.step} does not hold whole groups")


def check_conservation(
    buffer: Buffer,
    ledger: Ledger,
    consumer: str,
    groups_by_state: Mapping[str, int],
    steps: int,
    others: Sequence[str] = (),
) -> Conservation:
    """Compare the sampler's `groups_by_state` after `steps` steps with the stored tables.

    `others`: as for `conservation`.
    Returns: the rows by state.
    Raises: IntegrityError naming every figure that differs.
    """
    counts = conservation(buffer, ledger, consumer, others)
    mine = In("run_id", (ledger.run_id, *others))
    set_aside = {group_id for group_id, why in ledger.retired(consumer).items() if why != GroupState.STALE}
    groups = [
        row
        for row in buffer.read("groups", ["group_id", "outcome", "seqs"], mine).to_pylist()
        if not row["seqs"] or row["group_id"] not in set_aside
    ]
    outcomes = Counter(row["outcome"] for row in groups)
    leases = ledger.leases(consumer)
    used = groups_by_state[GroupState.TRAINED] + groups_by_state[GroupState.LEASED]
    dropped = groups_by_state[GroupState.DROPPED]
    whole = groups_by_state[GroupState.READY] + used + groups_by_state[GroupState.STALE] + dropped
    pairs = {
        "admitted": (
            groups_by_state[ADMITTED],
            sum(n for state, n in groups_by_state.items() if state != ADMITTED),
        ),
        "arrived": (whole, outcomes[GroupOutcome.ARRIVED]),
        "dropped": (dropped, sum(r["outcome"] == GroupOutcome.ARRIVED and not r["seqs"] for r in groups)),
        "failed": (groups_by_state[GroupState.FAILED], outcomes[GroupOutcome.FAILED]),
        "trained and leased": (used, len({g for lease in leases for g in lease.group_ids})),
        "steps leased": (steps, len(leases)),
        "steps consumed": (steps, ledger.consumed(consumer)),
        "rows unaccounted for": (0, counts.residual),
    }
    wrong = [f"{name}: {found} and {stored}" for name, (found, stored) in pairs.items() if found != stored]
    return _sound(ledger, counts, wrong)


def check_rows(buffer: Buffer, ledger: Ledger, consumer: str) -> Conservation:
    """The rows by state, where another process explores on: there is no sampler to compare them with.

    Raises: IntegrityError when rows are not accounted for.
    """
    counts = conservation(buffer, ledger, consumer)
    return _sound(ledger, counts, [f"rows unaccounted for: {counts.residual}"] if counts.residual else [])


def _sound(ledger: Ledger, counts: Conservation, wrong: Sequence[str]) -> Conservation:
    if wrong or counts.faults:
        raise IntegrityError(
            f"run '{ledger.run_id}': rollouts are not conserved; the sampler and the tables differ in "
            f"{'; '.join([*wrong, *counts.faults])}. This is a defect: keep the run folder and report it."
        )
    return counts
