"""A trial of a list of operators on stored experiences: whole groups, batch by batch, nothing written.

Memory: one batch of rows, 8 to 16 bytes for every stored row, and the rows that are to be shown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rft_data.buffer import Buffer
from rft_data.core.protocols import Pipeline
from rft_data.core.schema import ANNOTATIONS
from rft_data.core.words import Verdict
from rft_data.reading.whole_groups import GroupRows
from rft_data.recipe.modes import OperatorRecipe
from rft_data.run.rejudge.compare import Difference
from rft_data.run.rejudge.stored_verdicts import StoredVerdicts
from rft_data.run.rejudge.tally import OperatorTally, Tally

_GROUPS_PER_BATCH = 32
_SHOWN = ("seq", "experience_id", "verdict", "dropped_by", "reason", "advantage", "shaped_reward", "masked")
SHOWN_COLUMNS = tuple(name for name in _SHOWN if name in ANNOTATIONS.names)
"""Columns of a row's annotation that a dry run shows."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Effects of one pipeline on all rows."""

    pipeline_hash: str
    rows: int
    kept: int
    dropped: int
    quarantined: int
    operators: tuple[OperatorTally, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run of operators; nothing of it is stored."""

    groups: int
    first: Replay
    second: Replay | None
    """The recipe compared with; None without one, or when it is the stored verdicts."""
    difference: Difference | None
    rows: tuple[dict[str, object], ...]
    """The first rows, as SHOWN_COLUMNS."""

    def as_json(self) -> dict[str, object]:
        """Plain values, for JSON."""
        found = asdict(self)
        for name, replay in (("first", self.first), ("second", self.second)):
            for entry, tally in (
                zip(found[name]["operators"], replay.operators, strict=True) if replay else ()
            ):
                entry["keep_rate"] = tally.keep_rate
        return found


def groups_per_batch(recipe: OperatorRecipe) -> int:
    """Groups a step trains on, which is about how many are judged together; 32 where nothing is trained."""
    stages = getattr(recipe, "stages", [])
    return getattr(stages[-1], "groups_per_step", _GROUPS_PER_BATCH) if stages else _GROUPS_PER_BATCH


def dry_run(
    buffer: Buffer,
    pipeline: Pipeline,
    groups: GroupRows,
    *,
    groups_per_batch: int,
    against: Pipeline | StoredVerdicts | None = None,
    shown: int = 0,
) -> DryRun:
    """Run the operators over whole groups, in batches of as many groups as a step trains on.

    Operators that compare the rows of a batch see groups in the order they were stored, which is close to the
    batches of a run.
    Args: shown: how many rows, and how many examples of a difference, to return.
    Raises: OperatorError when an operator breaks its contract; IntegrityError if a stored row is damaged.
    """
    first, second = Tally(), Tally()
    difference = Difference()
    examples: list[dict[str, object]] = []
    for seqs in groups.batches(groups_per_batch):
        rows = buffer.take(seqs.tolist())
        judged = pipeline.run(rows)
        first.add(judged)
        examples += judged.slice(0, max(0, shown - len(examples))).select(SHOWN_COLUMNS).to_pylist()
        if isinstance(against, StoredVerdicts):
            difference.add(judged, against.verdicts(seqs), shown)
        elif against is not None:
            other = against.run(rows)
            second.add(other)
            difference.add(judged, other, shown)
    return DryRun(
        groups=len(groups),
        first=_replayed(pipeline, first),
        second=None if against is None or isinstance(against, StoredVerdicts) else _replayed(against, second),
        difference=None if against is None else difference,
        rows=tuple(examples),
    )


def _replayed(pipeline: Pipeline, tally: Tally) -> Replay:
    return Replay(
        pipeline_hash=pipeline.pipeline_hash,
        rows=tally.rows,
        kept=tally.verdicts[Verdict.KEPT],
        dropped=tally.verdicts[Verdict.DROPPED],
        quarantined=tally.verdicts[Verdict.QUARANTINED],
        operators=tally.operators(pipeline.metrics()),
    )
