"""Inputs of a sampler: a ledger, a registry of versions, and the stored history of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rft_data.core.groups import GroupResult, Lease


class LeaseLedger(Protocol):
    """The methods of `Ledger` and `RemoteLedger` that a sampler calls; stored leases survive a kill."""

    run_id: str
    attempt: int
    max_uses: int

    def find(self, consumer: str, step: int) -> Lease | None:
        """The lease already granted for this step, if any."""
        ...

    def leases(self, consumer: str | None = None) -> Sequence[Lease]:
        """Every lease that was not released."""
        ...

    def retired(self, consumer: str) -> Mapping[str, str]:
        """Groups that may never be leased to this consumer, with the reason."""
        ...

    def grant(self, consumer: str, step: int, version: int, groups: Sequence[GroupResult]) -> Lease:
        """Store a lease of whole groups."""
        ...

    def release(self, lease: Lease, reason: str) -> None:
        """End a lease without training it; does nothing if it is not the step's present lease."""
        ...

    def retire(self, consumer: str, group_ids: Sequence[str], reason: str) -> None:
        """Record that these groups may never be leased to this consumer."""
        ...


class Versions(Protocol):
    """The methods of `VersionRegistry` that a sampler calls."""

    @property
    def latest(self) -> int:
        """The newest version issued; -1 before the first."""
        ...

    def optimizer_step(self, version: int) -> int:
        """Optimizer steps behind a version's weights."""
        ...


@dataclass(frozen=True, slots=True)
class History:
    """Stored groups and settled steps of a run when its sampler starts; empty for a new run."""

    groups: Sequence[GroupResult] = ()
    """Closed groups of this run, and groups of other runs that it may train on.

    A group of this run with the outcome `awaiting` is open again, as before the restart.
    """
    settled_steps: int = 0
    """Leases for steps below this one are trained.

    Leases from this step on are delivered again: the checkpoint that the run resumes from does not hold them.
    """


NEW_RUN = History()
