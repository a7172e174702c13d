"""Descendants of an experience, and the origins of a checkpoint: lineage read forwards.

A step, a checkpoint or a version of the weights is named when it contains a gradient of the experience; all
that come later in the same run contain it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.filters import And, Compare
from rft_data.core.rows import TaskKey
from rft_data.core.words import LeaseEvent, LeaseState
from rft_data.reading.lineage import run_versions
from rft_data.reading.lineage_parts import Lineage, Use, Weights


@dataclass(frozen=True, slots=True)
class Spread:
    """How far the gradients of an experience went in one run."""

    run_id: str
    uses: tuple[Use, ...]
    """Leases under which a step may have been taken; a released one is not among them."""
    checkpoints: tuple[int, ...]
    """The checkpoints that contain it, oldest first."""
    weights: tuple[Weights, ...]
    """Policy versions that contain it, oldest first: what they sampled is its descendant too."""


@dataclass(frozen=True, slots=True)
class Descent:
    """Everything that was trained on an experience or was made from it."""

    runs: tuple[Spread, ...]
    tasks: tuple[TaskKey, ...]
    """Tasks that were made from it."""


@dataclass(frozen=True, slots=True)
class LeasedStep:
    """One lease of a step."""

    consumer: str
    step: int
    seqs: tuple[int, ...]
    """Its rows, in lease order."""
    groups: int


def descent(buffer: Buffer, line: Lineage) -> Descent:
    """The judgements, leases and checkpoints after an experience."""
    runs: dict[str, list[Use]] = {}
    for use in line.uses:
        if use.state != LeaseState.RELEASED:
            runs.setdefault(use.run_id, []).append(use)
    parent = Compare("parent_experience_id", "eq", line.experience["experience_id"])
    tasks = buffer.read("tasks", ["taskset", "task_id"], parent).to_pylist()
    return Descent(
        tuple(_spread(buffer, run_id, uses) for run_id, uses in runs.items()),
        tuple(TaskKey(row["taskset"], row["task_id"]) for row in tasks),
    )


def _spread(buffer: Buffer, run_id: str, uses: Sequence[Use]) -> Spread:
    held = [use.checkpoint_step for use in uses if use.checkpoint_step is not None]
    if not held:
        return Spread(run_id, tuple(uses), (), ())
    own = And((Compare("run_id", "eq", run_id), Compare("checkpoint_step", "ge", min(held))))
    found = set(buffer.read("consumed", ["checkpoint_step"], own).column(0).to_pylist())
    first = min(use.step for use in uses if use.checkpoint_step is not None)
    weights = [one for one in run_versions(buffer, run_id) if one.step > first]
    return Spread(run_id, tuple(uses), tuple(sorted(found)), tuple(weights))


def leases_of_step(buffer: Buffer, run_id: str, step: int) -> list[LeasedStep]:
    """The leases of one optimizer step that were not released, by consumer.

    Raises: RecipeError when there is none.
    """
    found = list(_leases(buffer, And((Compare("run_id", "eq", run_id), Compare("step", "eq", step)))))
    if not found:
        raise RecipeError(
            f"no consumer has a lease for step {step} of run '{run_id}' in buffer {buffer.location}; "
            "name a step that was leased and not released."
        )
    return sorted(found, key=lambda lease: lease.consumer)


def checkpoint_steps(buffer: Buffer, run_id: str, checkpoint: int) -> list[LeasedStep]:
    """The steps that a checkpoint contains and the one before it does not, in their order.

    Raises: RecipeError when no step is known to be in it.
    """
    own = And((Compare("run_id", "eq", run_id), Compare("checkpoint_step", "eq", checkpoint)))
    steps = {
        (row["consumer"], row["step"])
        for row in buffer.read("consumed", ["consumer", "step"], own).to_pylist()
    }
    if not steps:
        raise RecipeError(
            f"no step of run '{run_id}' is known to be in a checkpoint of step {checkpoint}; "
            "its rows name the checkpoints that hold them."
        )
    numbers = [step for _, step in steps]
    span = And(
        (
            Compare("run_id", "eq", run_id),
            Compare("step", "ge", min(numbers)),
            Compare("step", "le", max(numbers)),
        )
    )
    leases = (lease for lease in _leases(buffer, span) if (lease.consumer, lease.step) in steps)
    return sorted(leases, key=lambda lease: (lease.step, lease.consumer))


def checkpoints(buffer: Buffer, run_id: str) -> list[int]:
    """The checkpoints of a run that hold steps, oldest first."""
    column = buffer.read("consumed", ["checkpoint_step"], Compare("run_id", "eq", run_id)).column(0)
    return sorted(set(column.to_pylist()))


def _leases(buffer: Buffer, where: And) -> Iterator[LeasedStep]:
    """The newest lease of each consumer and step that was not released."""
    columns = ["kind", "consumer", "step", "seqs", "group_ids"]
    leased: dict[tuple[str, int], LeasedStep] = {}
    for event in buffer.read("leases", columns, where).to_pylist():
        who = (event["consumer"], event["step"])
        if event["kind"] == LeaseEvent.GRANT:
            leased[who] = LeasedStep(*who, tuple(event["seqs"]), len(event["group_ids"]))
        elif event["kind"] == LeaseEvent.RELEASE:
            leased.pop(who, None)
    yield from leased.values()
