"""The lineage of an experience: its task, its policy, verdicts, leases, checkpoint and weights.

All of it is read from the buffer's tables at each call. `lineage_text.py` prints it; `group_view.py` shows a
whole group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.codec import to_tasks
from rft_data.core.errors import RecipeError
from rft_data.core.filters import And, Compare, In, Or
from rft_data.core.rows import Task, TaskKey
from rft_data.core.stored_rows import ExperienceRow, LeaseEventRow
from rft_data.core.words import LeaseEvent, LeaseState, Verdict, member
from rft_data.reading.lineage_parts import Judgement, Lineage, Retired, Stage, Use, Weights

_EVENT = ("kind", "run_id", "consumer", "step", "epoch", "version", "seqs", "group_ids", "reason")


def lineage(buffer: Buffer, experience: str | int) -> Lineage:
    """The lineage of one experience, by id or row number.

    Raises: RecipeError if there is no such experience; IntegrityError if its row is damaged.
    """
    return row_lineage(buffer, stored_row(buffer, experience))


def row_lineage(buffer: Buffer, stored: ExperienceRow) -> Lineage:
    """The lineage of the experience of a whole stored row."""
    row = _without_lists(stored)
    versions = run_versions(buffer, row["run_id"])
    lowest, highest = row["version_min"], row["version_max"]
    sampled_by: list[Weights] = []
    if lowest is not None and highest is not None:
        sampled_by = [weights for weights in versions if lowest <= weights.version <= highest]
    uses, retired = _uses(buffer, row["seq"], row["group_id"])
    about = Compare("experience_id", "eq", row["experience_id"])
    halves = ("chosen_experience_id", "rejected_experience_id")
    pairs = Or(tuple(Compare(column, "eq", row["experience_id"]) for column in halves))
    return Lineage(
        experience=row,
        task=stored_task(buffer, TaskKey(row["taskset"], row["task_id"])),
        sampled_by=tuple(sampled_by),
        judgements=tuple(judgements(buffer, [row["seq"]]).get(row["seq"], ())),
        uses=tuple(uses),
        stages=tuple(_stages(buffer, row["experience_id"])),
        retired=tuple(retired),
        feedback=tuple(buffer.read("feedback", where=about).to_pylist()),
        preferences=tuple(buffer.read("preferences", ["preference_id"], pairs).column(0).to_pylist()),
    )


def find(buffer: Buffer, experience: str | int) -> ExperienceRow:
    """One row of the experiences, by id or row number, without its lists; its digest is checked.

    Raises: RecipeError if there is no such experience.
    """
    return _without_lists(stored_row(buffer, experience))


def stored_row(buffer: Buffer, experience: str | int) -> ExperienceRow:
    """Every column of one experience, by id or row number; its digest is checked.

    Raises: RecipeError if there is no such experience.
    """
    column = "experience_id" if isinstance(experience, str) else "seq"
    found = buffer.read("experiences", where=Compare(column, "eq", experience))
    rows: list[ExperienceRow] = found.to_pylist()
    if not rows:
        what = f"id '{experience}'" if isinstance(experience, str) else f"row number {experience}"
        raise RecipeError(
            f"buffer {buffer.location} has no experience with {what}; "
            "`rft buffer head` and `rft buffer search` show ids and row numbers."
        )
    return rows[0]


def _without_lists(row: Mapping[str, Any]) -> ExperienceRow:
    return cast("ExperienceRow", {name: value for name, value in row.items() if not isinstance(value, list)})


def trained_on(buffer: Buffer, run_id: str, step: int, consumer: str | None = None) -> pa.Table:
    """The experiences that were leased for one optimizer step of a run, in lease order.

    `consumer`: needed when several consumers have a lease for this step.
    Raises: RecipeError if no consumer has a lease for the step (none granted, or released since), or several
        have; IntegrityError if a row is damaged.
    """
    leased: dict[str, list[int]] = {}
    mine = And((Compare("run_id", "eq", run_id), Compare("step", "eq", step)))
    for event in buffer.read("leases", ["kind", "consumer", "seqs"], mine).to_pylist():
        if event["kind"] == LeaseEvent.GRANT:
            leased[event["consumer"]] = event["seqs"]
        elif event["kind"] == LeaseEvent.RELEASE:
            leased.pop(event["consumer"], None)
    if consumer is not None:
        leased = {who: seqs for who, seqs in leased.items() if who == consumer}
    if len(leased) != 1:
        found = f"consumers {', '.join(sorted(leased))} have" if leased else "no consumer has"
        raise RecipeError(
            f"{found} a lease for step {step} of run '{run_id}' in buffer {buffer.location}; "
            + ("name one of them." if leased else "name a step that was leased and not released.")
        )
    return buffer.take(next(iter(leased.values())))


def stored_task(buffer: Buffer, key: TaskKey) -> Task | None:
    """The stored task with this key; None if there is none."""
    named = And((Compare("taskset", "eq", key.taskset), Compare("task_id", "eq", key.task_id)))
    tasks = to_tasks(buffer.read("tasks", where=named, limit=1))
    return tasks[0] if tasks else None


def judgements(buffer: Buffer, seqs: list[int]) -> dict[int, list[Judgement]]:
    """The newest judgement of each pipeline, by row number; the newest of them last."""
    newest: dict[tuple[int, str], Judgement] = {}
    for row in buffer.read("annotations", where=In("seq", tuple(seqs))).to_pylist():
        advantage = None if row["advantage"] is None else tuple(row["advantage"])
        newest.pop((row["seq"], row["pipeline_hash"]), None)
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
    """Offline stages that were trained on the row. Of a stage that ran several times the last run counts."""
    columns = [field.name for field in fields(Stage)]
    last: dict[tuple[str, str], tuple[Stage, bool]] = {}
    for batch in buffer.batches("stage_rows", [*columns, "experience_ids"]):
        naming = set(_places_naming(batch.column("experience_ids"), experience_id).to_pylist())
        for place, row in enumerate(batch.select(columns).to_pylist()):
            last[row["run_id"], row["stage"]] = (Stage(**row), place in naming)
    return (stage for stage, used in last.values() if used)


def _group_events(buffer: Buffer, group_id: str) -> Iterator[LeaseEventRow]:
    """Events of the lease log that name the group, oldest first."""
    columns = list(_EVENT)
    for batch in buffer.batches("leases", columns, Compare("kind", "ne", LeaseEvent.ATTACH)):
        yield from batch.take(_places_naming(batch.column("group_ids"), group_id)).to_pylist()


def _places_naming(lists: pa.ListArray, name: str) -> pa.Array:
    """Places of the lists that contain `name`, ascending."""
    return pc.unique(pc.list_parent_indices(lists).filter(pc.equal(pc.list_flatten(lists), name)))


def _settled(buffer: Buffer, use: Use) -> Use:
    """The use with the checkpoint and the weights that contain its step."""
    if use.state != LeaseState.GRANTED:
        return use
    mine = Compare("lease_id", "eq", f"{use.run_id}/{use.consumer}/{use.step}")
    held = buffer.read("consumed", ["checkpoint_step"], mine).column(0).to_pylist()
    # step s is the (s + 1)-th optimizer step, so weights of step s + 1 are the first to contain it
    after = [weights for weights in run_versions(buffer, use.run_id) if weights.step > use.step]
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
        _reward_version(buffer, use.run_id),
    )


def run_versions(buffer: Buffer, run_id: str) -> list[Weights]:
    """Versions of a run, oldest first. Of several rows about one version the newest counts."""
    columns = ["run_id", "version", "step", "path"]
    rows = buffer.read("versions", columns, Compare("run_id", "eq", run_id)).to_pylist()
    newest = {row["version"]: Weights(**row) for row in rows}
    return [newest[version] for version in sorted(newest)]


def _reward_version(buffer: Buffer, run_id: str) -> str:
    """Version of the rewards that a run, or a run that trained on its groups, was trained on.

    Returns: the key of the feedback that its operators read; empty: the stored rewards.
    """
    rows = buffer.read("runs", ["run_id", "recipe"]).to_pylist()
    recipes = [(row["run_id"], json.loads(row["recipe"])) for row in rows]
    mine = [recipe for name, recipe in recipes if recipe.get("explored_by", name) == run_id]
    operators = mine[-1].get("experience_ops") or [] if mine else []
    joins = [one["feedback_mapper"] or {} for one in operators if "feedback_mapper" in one]
    found = [str(args.get("key")) for args in joins if args.get("replace") and args.get("into") != "stats"]
    return found[-1] if found else ""
