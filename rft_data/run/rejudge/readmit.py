"""A second chance for rejected groups: judged by another recipe, the kept ones go into a book of their own.

A book is the set of group rows under one run id; `mode: train` trains on the book it names in `explored_by`.
The run's own book stays as it is, so nothing that was trained, or may still be, is touched.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, MissingFileError, RecipeError
from rft_data.core.filters import Compare
from rft_data.core.protocols import Pipeline
from rft_data.core.rows import Played, TaskKey, Ticket
from rft_data.core.schema import ANNOTATIONS
from rft_data.core.words import GroupOutcome, Verdict
from rft_data.loop.closing import group_results, group_row
from rft_data.reading.whole_groups import GroupRows, whole_groups
from rft_data.run.record import standing
from rft_data.run.rejudge.stored_verdicts import StoredVerdicts
from rft_data.sampler.ledger import Ledger

_NAMES = ("seq", "experience_id", "pipeline_hash", "created_at")
_DECIDED = [name for name in ANNOTATIONS.names if name not in _NAMES]
"""What an annotation says, beside about what and when."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Readmitted:
    """What came of the groups that a run's book holds as dropped. Counts are groups, but for `rows`."""

    run_id: str
    book: str
    """Run id under which the re-admitted groups are: `explored_by` of a `mode: train` recipe."""
    pipeline_hash: str
    rejected: int
    """Dropped in the run's book; the sum of those below."""
    admitted: int
    """Kept now, and new in the book."""
    already: int
    """In the book before."""
    elsewhere: int
    """In another book, or leased from one: never in two."""
    set_aside: int
    """Retired by a resume or a repair, or no longer whole: rows that it was judged with are not stored."""
    still_rejected: int
    rows: int
    """Rows of the newly admitted groups that training may use."""
    rejected_by: Mapping[str, int]
    """Groups still rejected, by the operator that dropped the first of their rows."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def check_not_running(buffer: Buffer, run_id: str) -> None:
    """Refuse to write about a run that is under way; on a local folder the owner's lock says so as well.

    Raises: BusyError.
    """
    stored = buffer.read("runs", ["recipe"], Compare("run_id", "eq", run_id)).column("recipe").to_pylist()
    folder = json.loads(stored[-1]).get("run_dir") if stored else None
    if folder is None:
        return
    try:
        now = standing(Path(folder))
    except MissingFileError:
        return
    if now.alive:
        raise BusyError(
            f"run '{run_id}' in {folder} is {now.state}; its rejected groups can be re-admitted when it has "
            f"ended (rft stop {folder})."
        )


def readmit(
    buffer: Buffer, run_id: str, book: str, pipeline: Pipeline, *, groups_per_batch: int
) -> Readmitted:
    """Judge the run's dropped groups again; verdicts are stored, kept groups are entered in `book`.

    Groups that were ever leased, are in another book, or are retired stay out, so nothing is trained twice.
    A kept group keeps its id. Called again, only what has changed since (by new feedback) is added; a kill in
    between is mended by the next call. A group of one, or without rewards, is what the operators make of it.
    Raises: RecipeError if the run has no groups here, or the book is a run's own, was judged by others
        or is being trained on; OperatorError; IntegrityError if a stored row is damaged.
    """
    found = _Found(buffer, run_id, book)
    _check_judged_alike(buffer, found.entered, pipeline.pipeline_hash, book)
    whole = _whole(buffer, run_id, found.open)
    kept, by = _judge(buffer, whole, found.open, pipeline, groups_per_batch)
    _enter(buffer, book, kept, found.entered)
    return Readmitted(
        run_id=run_id,
        book=book,
        pipeline_hash=pipeline.pipeline_hash,
        rejected=len(found.rejected),
        admitted=len(kept),
        already=len(found.already),
        elsewhere=len(found.elsewhere),
        set_aside=len(found.set_aside) + len(found.open) - len(whole),
        still_rejected=len(whole) - len(kept),
        rows=sum(len(row["seqs"]) for row in kept),
        rejected_by=dict(by),
    )


class _Found:
    """The run's dropped groups, each in one place: in the book, elsewhere, set aside, or open."""

    def __init__(self, buffer: Buffer, run_id: str, book: str) -> None:
        _check_book(buffer, run_id, book)
        every = buffer.read("groups").to_pylist()
        mine = {row["group_id"]: row for row in every if row["run_id"] == run_id}
        if not mine:
            raise RecipeError(
                f"buffer {buffer.location} has no group of a run '{run_id}'; see `rft buffer info`."
            )
        self.rejected = {
            name: row
            for name, row in mine.items()
            if row["outcome"] == GroupOutcome.ARRIVED and not row["seqs"]
        }
        self.entered = [row for row in every if row["run_id"] == book]
        left = set(self.rejected)
        self.already = left & {row["group_id"] for row in self.entered}
        others = {row["group_id"] for row in every if row["run_id"] not in (run_id, book)}
        self.elsewhere = (left - self.already) & (others | _leased(buffer, book))
        self.set_aside = (left - self.already - self.elsewhere) & _retired(buffer, run_id)
        gone = self.already | self.elsewhere | self.set_aside
        self.open = [row for name, row in self.rejected.items() if name not in gone]


def _check_book(buffer: Buffer, run_id: str, book: str) -> None:
    if book == run_id or buffer.read("experiences", ["seq"], Compare("run_id", "eq", book), 1).num_rows:
        raise RecipeError(
            f"'{book}' is the book of a run that explored; name a book of its own with --as, "
            f"for example --as {run_id}-readmitted."
        )


def _check_judged_alike(buffer: Buffer, entered: Sequence[Row], pipeline_hash: str, book: str) -> None:
    """A training reads the verdicts of one pipeline: the book's groups must all have been kept by it."""
    seqs = [seq for row in entered for seq in row["seqs"]]
    if not seqs:
        return
    verdicts = StoredVerdicts(buffer, pipeline_hash).of(seqs).column("verdict").to_pylist()
    if any(verdict != Verdict.KEPT for verdict in verdicts):
        raise RecipeError(
            f"book '{book}' holds groups that other operators kept; `mode: train` needs one operator list "
            "for a whole book: name another book with --as."
        )


def _leased(buffer: Buffer, book: str) -> set[str]:
    """Groups in a lease that was not released, of any run and consumer but the book's own."""
    runs = set(buffer.read("leases", ["run_id"]).column("run_id").to_pylist()) - {book}
    return {
        name for run_id in runs for lease in Ledger(buffer, run_id, 0).leases() for name in lease.group_ids
    }


def _retired(buffer: Buffer, run_id: str) -> set[str]:
    """Groups that some consumer of the run, or every one, will never be handed."""
    ledger = Ledger(buffer, run_id, 0)
    return {name for consumer in ["", *ledger.consumers()] for name in ledger.retired(consumer)}


def _whole(buffer: Buffer, run_id: str, groups: Sequence[Row]) -> GroupRows:
    """The rows of those groups of which every row is stored; a torn group is never judged, nor trained."""
    rows = {row["group_id"]: len(row["rewards"]) for row in groups}
    stored = whole_groups(buffer, run_id)
    return stored.only(
        {name for place, name in enumerate(stored.names) if len(stored.group(place)) == rows.get(name)}
    )


def _judge(
    buffer: Buffer, rows_of: GroupRows, groups: Sequence[Row], pipeline: Pipeline, groups_per_batch: int
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Rows of `groups` for those kept now, and how many groups each operator still drops."""
    by_name = {row["group_id"]: row for row in groups}
    before = StoredVerdicts(buffer, pipeline.pipeline_hash)
    kept: list[dict[str, Any]] = []
    by: Counter[str] = Counter()
    for start in range(0, len(rows_of), groups_per_batch):
        places = range(start, min(start + groups_per_batch, len(rows_of)))
        rows = buffer.take([seq for place in places for seq in rows_of.group(place).tolist()])
        annotations = pipeline.run(rows)
        fresh = _changed(annotations, before.of(annotations.column("seq").to_numpy()))
        if fresh.num_rows:
            buffer.annotate(fresh)
        played = [_played(by_name[rows_of.names[place]], rows_of, place) for place in places]
        for group, result in zip(played, group_results(played, rows, annotations), strict=True):
            if result.seqs:
                kept.append(group_row(group, result, {}))
            else:
                by[result.dropped_by] += 1
    return kept, by


def _played(row: Row, rows_of: GroupRows, place: int) -> Played:
    seqs = tuple(rows_of.group(place).tolist())
    ticket = Ticket(row["group_id"], row["ordinal"], row["version"], row["round"])
    return Played(
        ticket, TaskKey(row["taskset"], row["task_id"]), GroupOutcome.ARRIVED, seqs, len(row["rewards"])
    )


def _changed(annotations: pa.Table, before: pa.Table) -> pa.Table:
    """Those that say something else than the same pipeline said last."""
    pairs = zip(annotations.select(_DECIDED).to_pylist(), before.select(_DECIDED).to_pylist(), strict=True)
    return annotations.filter(pa.array([new != old for new, old in pairs], pa.bool_()))


def _enter(buffer: Buffer, book: str, kept: Sequence[Row], entered: Sequence[Row]) -> None:
    """Write the book's new groups down, in the run's order, and the policy versions that sampled them.

    To the book every version is of step 0: all was sampled before its training begins.
    Raises: RecipeError when training on the book has begun.
    """
    if not kept:
        return
    if Ledger(buffer, book, 0).consumers():
        raise RecipeError(
            f"book '{book}' is being trained on, or was; {len(kept)} more groups can be re-admitted now: "
            "name another book with --as."
        )
    _issue(buffer, book, {version for row in kept for version in (row["version"], row["version_min"])})
    first = max((row["ordinal"] for row in entered), default=-1) + 1
    ordered = sorted(kept, key=lambda row: row["ordinal"])
    named = {"run_id": book, "attempt": 0}
    buffer.add_rows("groups", [{**row, **named, "ordinal": first + n} for n, row in enumerate(ordered)])


def _issue(buffer: Buffer, book: str, versions: Collection[int]) -> None:
    stored = buffer.read("versions", ["version"], Compare("run_id", "eq", book)).column("version").to_pylist()
    common = {"run_id": book, "step": 0, "path": "", "manifest_digest": "", "rows": len(buffer)}
    fresh = sorted(set(versions) - set(stored))
    buffer.add_rows("versions", [{**common, "version": version} for version in fresh])
