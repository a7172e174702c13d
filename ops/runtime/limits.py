"""How one operator of a list is to run: for how long, where, and what its failures mean.

Said beside the list, so that the list itself stays Data-Juicer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rft_data.core.errors import RecipeError

OnFailure: TypeAlias = Literal["quarantine", "keep", "stop"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one operator; rows never differ by where it ran, so none of it is part of `pipeline_hash`."""

    on_failure: OnFailure = "quarantine"
    """A row it fails on is set aside (fail closed), goes on unjudged (fail open), or ends the run."""
    workers: int = 0
    """Processes of its own, each with a part of a batch's rows or groups; 0: it runs in the caller's."""
    where: Literal["local", "ray"] = "local"
    """Whether the workers are processes of this machine or Ray actors."""
    budget_s: float | None = None
    """Seconds for one batch; a worker that needs more is ended, and all its rows have failed."""

    def __post_init__(self) -> None:
        """Raises: RecipeError for values that cannot be kept."""
        if self.workers < 0 or (self.budget_s is not None and not self.budget_s > 0):
            raise RecipeError(
                f"op_limits has workers {self.workers} and budget_s {self.budget_s}; "
                "wanted workers >= 0 and budget_s > 0."
            )
        if problem := needs_workers(self.workers, self.where, self.budget_s):
            raise RecipeError(f"op_limits: {problem}.")


def needs_workers(workers: int, where: str, budget_s: float | None) -> str | None:
    """What of these options cannot be without a process of the operator's own, in words."""
    if workers:
        return None
    if budget_s is not None:
        return (
            f"'budget_s' {budget_s:g} cannot be enforced in the run's own process, where nothing may be "
            "interrupted; give 'workers: 1' or more"
        )
    return "'where: ray' is about workers; give 'workers: 1' or more" if where == "ray" else None
