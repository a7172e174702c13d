"""Readmission: a run's rejected groups are judged by another recipe; kept groups get a run id of their own.

That run id is called `new_run` here. `mode: train` trains on it when `explored_by` names it. The group
rows of the run itself stay as they are, so nothing that it trained on, or may still train on, changes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, cast

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, MissingFileError, RecipeError
from rft_data.core.filters import Compare
from rft_data.core.groups import Played, Ticket
from rft_data.core.protocols import Pipeline
from rft_data.core.rows import TaskKey
from rft_data.core.schema import ANNOTATIONS
from rft_data.core.words import GroupOutcome, Verdict
from rft_data.loop.closing import group_results, group_row
from rft_data.reading.whole_groups import GroupRows, whole_groups
from rft_data.run.mirror import run_folder
from rft_data.run.record import standing
from rft_data.run.rejudge.rejected import Chosen, GroupRow, Rejected
from rft_data.run.rejudge.stored_verdicts import StoredVerdicts
from rft_data.sampler.ledger import Ledger

_NAMES = ("seq", "experience_id", "pipeline_hash", "created_at")
_DECIDED = [name for name in ANNOTATIONS.names if name not in _NAMES]
"""Columns of an annotation that hold the decision, not the row or the time."""
Seqs = Sequence[int]


@dataclass(frozen=True, slots=True)
class Readmitted:
    """Result of readmitting a run's dropped groups. All counts but `rows` are of groups."""

    run_id: str
    new_run: str
    """The run id that readmitted groups have: `explored_by` of a `mode: train` recipe."""
    pipeline_hash: str
    rejected: int
    """The run's dropped groups, or all its groups; the sum of the counts below."""
    admitted: int
    """Kept now, and stored under `new_run`."""
    already: int
    """Stored under `new_run` before."""
    elsewhere: int
    """Stored under another run id, or leased: a group is readmitted once."""
    set_aside: int
    """Retired by a resume or a repair, or some of its rows are no longer stored."""
    still_rejected: int
    rows: int
    """Rows of the newly admitted groups that training may use."""
    rejected_by: Mapping[str, int]
    """Groups still rejected, by the operator that dropped the first of their rows."""

    def as_json(self) -> dict[str, object]:
        """Plain values, for JSON; `new_run` has its old name there, `book`, which programs read."""
        return {"book" if name == "new_run" else name: value for name, value in asdict(self).items()}


def check_not_running(buffer: Buffer, run_id: str) -> None:
    """Raises: BusyError while the run is running."""
    stored = buffer.read("runs", ["recipe"], Compare("run_id", "eq", run_id)).column("recipe").to_pylist()
    folder = json.loads(stored[-1]).get("run_dir") if stored else None
    if folder is None:
        return
    try:
        now = standing(run_folder(folder))
    except MissingFileError:
        return
    if now.alive:
        raise BusyError(
            f"run '{run_id}' in {folder} is {now.state}; its rejected groups can be readmitted when it has "
            f"ended (rft stop {folder})."
        )


def readmit(
    buffer: Buffer,
    run_id: str,
    new_run: str,
    pipeline: Pipeline,
    *,
    groups_per_batch: int,
    every: bool = False,
) -> Readmitted:
    """Judge the run's dropped groups again; store the verdicts, and the kept groups under run id `new_run`.

    With `every` also those that the run kept, for example by another version of the reward.
    Groups that were leased, that are stored under another run id, or that are retired are left out, so
    nothing is trained twice. A kept group keeps its id. Another call adds only what has changed since (by new
    feedback), and completes a call that was killed.
    Raises: RecipeError if the run has no groups here, or `new_run` is the id of a run that explored, has
        groups that other operators kept, or is being trained on; OperatorError; IntegrityError if a stored
        row is damaged.
    """
    chosen = Chosen(run_id, new_run, every=every)
    again = judged_again(buffer, chosen, pipeline, buffer.annotate, groups_per_batch=groups_per_batch)
    return again.enter(buffer, buffer)


class RowStore(Protocol):
    """The method of a buffer, or of the hub that has it, which stores readmitted groups."""

    def add_rows(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows to a table."""
        ...


@dataclass(frozen=True, slots=True)
class JudgedAgain:
    """Groups that were judged again, before those kept are stored."""

    found: Rejected
    kept: Sequence[GroupRow]
    rejected_by: Mapping[str, int]
    whole: int
    """Groups that were judged."""
    pipeline_hash: str

    def enter(self, buffer: Buffer, store: RowStore) -> Readmitted:
        """Store the kept groups under their new run id, those excepted that another run id got meanwhile.

        Args: buffer: is read, and may be another process's; store: is written to.
        Raises: RecipeError when training on them has begun.
        """
        found, chosen = self.found, self.found.chosen
        now = Rejected(buffer, chosen)
        open_now = {row["group_id"] for row in now.open}
        kept = [row for row in self.kept if row["group_id"] in open_now]
        _enter(buffer, store, chosen.new_run, kept, now.entered)
        return Readmitted(
            run_id=chosen.run_id,
            new_run=chosen.new_run,
            pipeline_hash=self.pipeline_hash,
            rejected=len(found.rejected),
            admitted=len(kept),
            already=len(found.already),
            elsewhere=len(found.elsewhere) + len(self.kept) - len(kept),
            set_aside=len(found.set_aside) + len(found.open) - self.whole,
            still_rejected=self.whole - len(self.kept),
            rows=sum(len(row["seqs"]) for row in kept),
            rejected_by=dict(self.rejected_by),
        )


def judged_again(
    buffer: Buffer,
    chosen: Chosen,
    pipeline: Pipeline,
    annotate: Callable[[pa.Table], None],
    *,
    groups_per_batch: int,
) -> JudgedAgain:
    """Judge the chosen groups; `annotate` gets the verdicts that are not stored yet, batch by batch.

    Raises: as `readmit`.
    """
    found = Rejected(buffer, chosen)
    _check_judged_alike(buffer, found.entered, pipeline.pipeline_hash, chosen.new_run)
    whole = _whole(buffer, chosen.run_id, found.open)
    kept, by = _judge(buffer, annotate, whole, found.open, pipeline, groups_per_batch)
    return JudgedAgain(found, kept, dict(by), len(whole), pipeline.pipeline_hash)


def _check_judged_alike(
    buffer: Buffer, entered: Sequence[GroupRow], pipeline_hash: str, new_run: str
) -> None:
    """A training reads the verdicts of one pipeline: it must have kept all groups that `new_run` has."""
    seqs = [seq for row in entered for seq in row["seqs"]]
    if not seqs:
        return
    verdicts = StoredVerdicts(buffer, pipeline_hash).verdicts(seqs).column("verdict").to_pylist()
    if any(verdict != Verdict.KEPT for verdict in verdicts):
        raise RecipeError(
            f"run id '{new_run}' has groups that other operators kept, and `mode: train` needs one operator "
            "list for all groups of a run id: give another one with --as."
        )


def _whole(buffer: Buffer, run_id: str, groups: Sequence[GroupRow]) -> GroupRows:
    """The rows of those groups of which every row is stored; others are neither judged nor trained."""
    rows = {row["group_id"]: len(row["rewards"]) for row in groups}
    stored = whole_groups(buffer, run_id)
    return stored.only(
        {name for place, name in enumerate(stored.names) if len(stored.group(place)) == rows.get(name)}
    )


def _judge(
    buffer: Buffer,
    annotate: Callable[[pa.Table], None],
    whole: GroupRows,
    groups: Sequence[GroupRow],
    pipeline: Pipeline,
    groups_per_batch: int,
) -> tuple[list[GroupRow], Counter[str]]:
    """Rows of `groups` for those kept now, and how many groups each operator still drops."""
    by_name = {row["group_id"]: row for row in groups}
    before = StoredVerdicts(buffer, pipeline.pipeline_hash)
    kept: list[GroupRow] = []
    by: Counter[str] = Counter()
    for start in range(0, len(whole), groups_per_batch):
        places = range(start, min(start + groups_per_batch, len(whole)))
        rows = buffer.take([seq for place in places for seq in whole.group(place).tolist()])
        annotations = pipeline.run(rows)
        fresh = _changed(annotations, before.verdicts(annotations.column("seq").to_numpy()))
        if fresh.num_rows:
            annotate(fresh)
        played = [_played(by_name[whole.names[place]], whole.group(place).tolist()) for place in places]
        for group, result in zip(played, group_results(played, rows, annotations), strict=True):
            if result.seqs:
                kept.append(cast("GroupRow", group_row(group, result, {})))
            else:
                by[result.dropped_by] += 1
    return kept, by


def _played(row: GroupRow, seqs: Seqs) -> Played:
    ticket = Ticket(row["group_id"], row["ordinal"], row["version"], row["round"])
    task = TaskKey(row["taskset"], row["task_id"])
    return Played(ticket, task, GroupOutcome.ARRIVED, tuple(seqs), len(row["rewards"]))


def _changed(annotations: pa.Table, before: pa.Table) -> pa.Table:
    """The annotations whose decision is not the one that the same pipeline made last."""
    pairs = zip(annotations.select(_DECIDED).to_pylist(), before.select(_DECIDED).to_pylist(), strict=True)
    return annotations.filter(pa.array([new != old for new, old in pairs], pa.bool_()))


def _enter(
    buffer: Buffer, store: RowStore, new_run: str, kept: Sequence[GroupRow], entered: Sequence[GroupRow]
) -> None:
    """Store new groups under run id `new_run`, in the run's order, and the policy versions that sampled them.

    Every version is of step 0 there: all groups were sampled before their training begins.
    Raises: RecipeError when training on them has begun.
    """
    if not kept:
        return
    if Ledger(buffer, new_run, 0).consumers():
        raise RecipeError(
            f"the groups of run id '{new_run}' are being trained on, or were; {len(kept)} more groups can be "
            "readmitted now: give another run id with --as."
        )
    _issue(
        buffer, store, new_run, {version for row in kept for version in (row["version"], row["version_min"])}
    )
    first = max((row["ordinal"] for row in entered), default=-1) + 1
    ordered = sorted(kept, key=lambda row: row["ordinal"])
    named = {"run_id": new_run, "attempt": 0}
    store.add_rows("groups", [{**row, **named, "ordinal": first + n} for n, row in enumerate(ordered)])


def _issue(buffer: Buffer, store: RowStore, new_run: str, versions: Collection[int]) -> None:
    stored = (
        buffer.read("versions", ["version"], Compare("run_id", "eq", new_run)).column("version").to_pylist()
    )
    common = {"run_id": new_run, "step": 0, "path": "", "manifest_digest": "", "rows": len(buffer)}
    fresh = sorted(set(versions) - set(stored))
    store.add_rows("versions", [{**common, "version": version} for version in fresh])
