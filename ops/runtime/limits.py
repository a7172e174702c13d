"""Limits of one operator: how long it may run, where it runs, and what happens when it fails.

Recipes give them beside the operator list, so that the list itself keeps Data-Juicer's format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rft_data.core.errors import RecipeError

OnFailure: TypeAlias = Literal["quarantine", "keep", "stop"]
WORKER_BUDGET_S = 60.0
"""Budget of an operator that may only run with one, where the recipe gives none."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one operator. `pipeline_hash` leaves them out: they do not change rows."""

    on_failure: OnFailure = "quarantine"
    """A row it fails on is quarantined (fail closed), kept unjudged (fail open), or ends the run."""
    workers: int = 0
    """Worker processes, which share the rows or groups of a batch; 0: it runs in the caller's process."""
    where: Literal["local", "ray"] = "local"
    """Whether the workers are processes of this machine or Ray actors."""
    budget_s: float | None = None
    """Seconds for one batch. A worker that takes longer is killed, and all its rows have failed."""

    def __post_init__(self) -> None:
        """Raises: RecipeError for values out of range, and for limits that need workers without any."""
        if self.workers < 0 or (self.budget_s is not None and not self.budget_s > 0):
            raise RecipeError(
                f"op_limits has workers {self.workers} and budget_s {self.budget_s}; "
                "wanted workers >= 0 and budget_s > 0."
            )
        if problem := needs_workers(self.workers, self.where, self.budget_s):
            raise RecipeError(f"op_limits: {problem}.")


def with_worker(limits: Limits) -> Limits:
    """The same limits with a worker and a budget, for an operator that may stall the run's own process."""
    budget_s = WORKER_BUDGET_S if limits.budget_s is None else limits.budget_s
    return replace(limits, workers=max(1, limits.workers), budget_s=budget_s)


def needs_workers(workers: int, where: str, budget_s: float | None) -> str | None:
    """An error text for the option that needs a worker while there is none; None without one."""
    if workers:
        return None
    if budget_s is not None:
        return (
            f"'budget_s' {budget_s:g} cannot be enforced in the run's own process, where nothing may be "
            "interrupted; give 'workers: 1' or more"
        )
    return "'where: ray' is about workers; give 'workers: 1' or more" if where == "ray" else None
