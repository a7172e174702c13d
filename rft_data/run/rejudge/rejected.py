"""The groups of a run that a readmission may judge again, and the fate of the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypedDict

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.filters import Compare
from rft_data.core.words import GroupOutcome
from rft_data.sampler.ledger import Ledger


class GroupRow(TypedDict):
    """The columns of a row of `groups` that are read here."""

    run_id: str
    group_id: str
    ordinal: int
    round: int
    taskset: str
    task_id: str
    version: int
    version_min: int
    outcome: GroupOutcome
    rewards: Sequence[float | None]
    seqs: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The groups that are judged again."""

    run_id: str
    new_run: str
    """The run id that those kept will have."""
    names: Collection[str] | None = None
    """Only groups of these ids; None: all."""
    every: bool = False
    """Also groups that the run kept."""


class Rejected:
    """The chosen groups, each in one of: already readmitted, elsewhere, set aside, open."""

    def __init__(self, buffer: Buffer, chosen: Chosen) -> None:
        """Raises: RecipeError if the run has no groups here, or the new run id is of a run that explored."""
        run_id, new_run, self.chosen = chosen.run_id, chosen.new_run, chosen
        _check_new_run(buffer, run_id, new_run)
        rows = buffer.read("groups").to_pylist()
        mine = {row["group_id"]: row for row in rows if row["run_id"] == run_id}
        if not mine:
            raise RecipeError(
                f"buffer {buffer.location} has no group of a run '{run_id}'; see `rft buffer info`."
            )
        self.rejected = {
            name: row
            for name, row in mine.items()
            if row["outcome"] == GroupOutcome.ARRIVED
            and (chosen.every or not row["seqs"])
            and (chosen.names is None or name in chosen.names)
        }
        self.entered = [row for row in rows if row["run_id"] == new_run]
        left = set(self.rejected)
        self.already = left & {row["group_id"] for row in self.entered}
        others = {row["group_id"] for row in rows if row["run_id"] not in (run_id, new_run)}
        self.elsewhere = (left - self.already) & (others | _leased(buffer, new_run))
        self.set_aside = (left - self.already - self.elsewhere) & _retired(buffer, run_id)
        gone = self.already | self.elsewhere | self.set_aside
        self.open = [row for name, row in self.rejected.items() if name not in gone]


def _check_new_run(buffer: Buffer, run_id: str, new_run: str) -> None:
    if new_run == run_id or buffer.read("experiences", ["seq"], Compare("run_id", "eq", new_run), 1).num_rows:
        raise RecipeError(
            f"'{new_run}' is the id of a run that explored; readmitted groups need a run id of their own: "
            f"give one with --as, for example --as {run_id}-readmitted."
        )


def _leased(buffer: Buffer, new_run: str) -> set[str]:
    """Groups in a lease that was not released, of any consumer and any run but `new_run`."""
    runs = set(buffer.read("leases", ["run_id"]).column("run_id").to_pylist()) - {new_run}
    return {
        name for run_id in runs for lease in Ledger(buffer, run_id, 0).leases() for name in lease.group_ids
    }


def _retired(buffer: Buffer, run_id: str) -> set[str]:
    """Groups that are retired for at least one consumer of the run."""
    ledger = Ledger(buffer, run_id, 0)
    return {name for consumer in ["", *ledger.consumers()] for name in ledger.retired(consumer)}
