"""Where an experience came from and what became of it: task, policy, verdicts, leases, checkpoint, weights.

Everything is read from the buffer's tables; nothing is kept. `lineage_text.py` shows it, `group_view.py` is
the same for a whole group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.codec import to_tasks
from rft_data.core.errors import RecipeError
from rft_data.core.filters import And, Compare, Filter, In, Or
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import LeaseEvent, LeaseState, Verdict, member


@dataclass(frozen=True, slots=True)
class Weights:
    """One policy version and where its weights are."""

    run_id: str
    version: int
    step: int
    """Optimizer steps behind the weights."""
    path: str
    """Weight folder, relative to the run; empty if this version was not published."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one operator pipeline last said about the experience."""

    pipeline_hash: str
    verdict: Verdict
    dropped_by: str
    reason: str
    advantage: tuple[float, ...] | None
    """One value, or one per token; None when dropped."""
    shaped_reward: float | None
    masked: bool
    """Whether none of its tokens enters a loss."""


@dataclass(frozen=True, slots=True)
class Use:
    """One lease the experience was part of."""

    run_id: str
    consumer: str
    step: int
    epoch: int
    policy_version: int
    """What the trainer held when it leased; -1 if unknown."""
    state: LeaseState
    reason: str
    """Why it was released, or empty."""
    checkpoint_step: int | None
    """The checkpoint that holds it; None until one does."""
    weights: Weights | None
    """The first published version whose weights contain the step (else the first issued); None until a
    checkpoint holds it: a granted lease alone does not say that it was trained."""


@dataclass(frozen=True, slots=True)
class Stage:
    """An offline stage that was trained on the experience, alone or as half of a pair."""

    run_id: str
    stage: str
    """Its number and algorithm, for example `1-dpo`."""
    digest: str
    """Content hash of all its examples; the manifest of the stage's folder has it as `trained_on`."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A consumer that will never be handed the experience's group."""

    run_id: str
    consumer: str
    """Empty: no consumer of the run will be."""
    reason: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """The whole way of one experience."""

    experience: dict[str, Any]
    """Its scalar columns."""
    task: Task | None
    """None when the task was never stored."""
    sampled_by: tuple[Weights, ...]
    """Versions that sampled its tokens, oldest first."""
    judgements: tuple[Judgement, ...]
    uses: tuple[Use, ...]
    """In the order granted."""
    stages: tuple[Stage, ...]
    """In the order trained."""
    retired: tuple[Retired, ...]
    feedback: tuple[dict[str, Any], ...]
    """Rows of `feedback`, oldest first."""
    preferences: tuple[str, ...]
    """Ids of stored pairs it is the better or the worse half of."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def lineage(buffer: Buffer, experience: str | int) -> Lineage:
    """The lineage of one experience, by id or row number.

    Raises: RecipeError if there is no such experience; IntegrityError if its row is damaged.
    """
    row = find(buffer, experience)
    versions = _versions(buffer, row["run_id"])
    lowest, highest = row["version_min"], row["version_max"]
    sampled_by = [] if lowest is None else [w for w in versions if lowest <= w.version <= highest]
    uses, retired = _uses(buffer, row["seq"], row["group_id"])
    about = Compare("experience_id", "eq", row["experience_id"])
    halves = ("chosen_experience_id", "rejected_experience_id")
    pairs = Or(tuple(Compare(column, "eq", row["experience_id"]) for column in halves))
    return Lineage(
        experience={name: value for name, value in row.items() if not isinstance(value, list)},
        task=stored_task(buffer, TaskKey(row["taskset"], row["task_id"])),
        sampled_by=tuple(sampled_by),
        judgements=tuple(judgements(buffer, [row["seq"]]).get(row["seq"], ())),
        uses=tuple(uses),
        stages=tuple(_stages(buffer, row["experience_id"])),
        retired=tuple(retired),
        feedback=tuple(buffer.read("feedback", where=about).to_pylist()),
        preferences=tuple(buffer.read("preferences", ["preference_id"], pairs).column(0).to_pylist()),
    )


def find(buffer: Buffer, experience: str | int) -> dict[str, Any]:
    """One row of the experiences, by id or row number; its digest is checked.

    Raises: RecipeError if there is no such experience.
    """
    named: Filter = (
        Compare("experience_id", "eq", experience)
        if isinstance(experience, str)
        else Compare("seq", "eq", experience)
    )
    seqs = buffer.read("experiences", ["seq"], named, 1).column("seq").to_pylist()
    if not seqs:
        what = f"id '{experience}'" if isinstance(experience, str) else f"row number {experience}"
        raise RecipeError(
            f"buffer {buffer.location} has no experience with {what}; "
            "`rft buffer head` and `rft buffer search` show ids and row numbers."
        )
    row: dict[str, Any] = buffer.take(seqs).to_pylist()[0]
    return row


def trained_on(buffer: Buffer, run_id: str, step: int, consumer: str | None = None) -> pa.Table:
    """The experiences that one optimizer step of a run was leased, in lease order.

    `consumer`: needed when several consumers have a lease for this step.
    Raises: RecipeError if no lease for it stands (none granted, or released since), or several do;
        IntegrityError if a row is damaged.
    """
    standing: dict[str, list[int]] = {}
    mine = And((Compare("run_id", "eq", run_id), Compare("step", "eq", step)))
    for event in buffer.read("leases", ["kind", "consumer", "seqs"], mine).to_pylist():
        if event["kind"] == LeaseEvent.GRANT:
            standing[event["consumer"]] = event["seqs"]
        elif event["kind"] == LeaseEvent.RELEASE:
            standing.pop(event["consumer"], None)
    if consumer is not None:
        standing = {who: seqs for who, seqs in standing.items() if who == consumer}
    if len(standing) != 1:
        found = f"consumers {', '.join(sorted(standing))} have" if standing else "no consumer has"
        raise RecipeError(
            f"{found} a lease for step {step} of run '{run_id}' in buffer {buffer.location}; "
            + ("name one of them." if standing else "name a step that was leased and not released.")
        )
    return buffer.take(next(iter(standing.values())))


def stored_task(buffer: Buffer, key: TaskKey) -> Task | None:
    """The stored task of that key."""
    named = And((Compare("taskset", "eq", key.taskset), Compare("task_id", "eq", key.task_id)))
    tasks = to_tasks(buffer.read("tasks", where=named, limit=1))
    return tasks[0] if tasks else None


def judgements(buffer: Buffer, seqs: list[int]) -> dict[int, list[Judgement]]:
    """The newest judgement of each pipeline, by row number; pipelines in the order they first judged it."""
    newest: dict[tuple[int, str], Judgement] = {}
    for row in buffer.read("annotations", where=In("seq", tuple(seqs))).to_pylist():
        advantage = None if row["advantage"] is None else tuple(row["advantage"])
        newest[row["seq"], row["pipeline_hash"]] = Judgement(
            row["pipeline_hash"],
            member(Verdict, row["verdict"]),
            row["dropped_by"],
            row["reason"],
            advantage,
            row["shaped_reward"],
            bool(row["masked"]),
        )
    found: dict[int, list[Judgement]] = {}
    for (seq, _), judgement in newest.items():
        found.setdefault(seq, []).append(judgement)
    return found


def _uses(buffer: Buffer, seq: int, group_id: str) -> tuple[list[Use], list[Retired]]:
    uses: list[Use] = []
    retired: list[Retired] = []
    for event in _group_events(buffer, group_id):
        who = (event["run_id"], event["consumer"], event["step"])
        if event["kind"] == LeaseEvent.GRANT and seq in event["seqs"]:
            uses.append(Use(*who, event["epoch"], event["version"], LeaseState.GRANTED, "", None, None))
        elif event["kind"] == LeaseEvent.RETIRE:
            retired.append(Retired(event["run_id"], event["consumer"], event["reason"]))
        elif event["kind"] == LeaseEvent.RELEASE:
            uses = [
                Use(*who, use.epoch, use.policy_version, LeaseState.RELEASED, event["reason"], None, None)
                if (use.run_id, use.consumer, use.step) == who and use.state == LeaseState.GRANTED
                else use
                for use in uses
            ]
    return [_settled(buffer, use) for use in uses], retired


def _stages(buffer: Buffer, experience_id: str) -> Iterator[Stage]:
    """Offline stages that were trained on the row; a stage trained anew counts as it was trained last."""
    columns = [field.name for field in fields(Stage)]
    last: dict[tuple[str, str], tuple[Stage, bool]] = {}
    for batch in buffer.batches("stage_rows", [*columns, "experience_ids"]):
        naming = set(_places_naming(batch.column("experience_ids"), experience_id).to_pylist())
        for place, row in enumerate(batch.select(columns).to_pylist()):
            last[row["run_id"], row["stage"]] = (Stage(**row), place in naming)
    return (stage for stage, used in last.values() if used)


def _group_events(buffer: Buffer, group_id: str) -> Iterator[dict[str, Any]]:
    """Events of the lease log that name the group, oldest first."""
    columns = ["kind", "run_id", "consumer", "step", "epoch", "version", "seqs", "group_ids", "reason"]
    for batch in buffer.batches("leases", columns, Compare("kind", "ne", LeaseEvent.ATTACH)):
        yield from batch.take(_places_naming(batch.column("group_ids"), group_id)).to_pylist()


def _places_naming(lists: pa.ListArray, name: str) -> pa.Array:
    """Places of the lists that hold `name`, ascending."""
    return pc.unique(pc.list_parent_indices(lists).filter(pc.equal(pc.list_flatten(lists), name)))


def _settled(buffer: Buffer, use: Use) -> Use:
    """With the checkpoint and the weights that hold it."""
    if use.state != LeaseState.GRANTED:
        return use
    mine = Compare("lease_id", "eq", f"{use.run_id}/{use.consumer}/{use.step}")
    held = buffer.read("consumed", ["checkpoint_step"], mine).column(0).to_pylist()
    # step s is the (s + 1)-th optimizer step, so weights of step s + 1 are the first to contain it
    after = [weights for weights in _versions(buffer, use.run_id) if weights.step > use.step]
    first = min(after, key=lambda weights: (not weights.path, weights.step, -weights.version), default=None)
    return Use(
        use.run_id,
        use.consumer,
        use.step,
        use.epoch,
        use.policy_version,
        LeaseState.TRAINED if held else LeaseState.GRANTED,
        "",
        held[-1] if held else None,
        first if held else None,
    )


def _versions(buffer: Buffer, run_id: str) -> list[Weights]:
    """Versions of a run, oldest first; the newest row about a version counts."""
    columns = ["run_id", "version", "step", "path"]
    rows = buffer.read("versions", columns, Compare("run_id", "eq", run_id)).to_pylist()
    newest = {row["version"]: Weights(**row) for row in rows}
    return [newest[version] for version in sorted(newest)]
