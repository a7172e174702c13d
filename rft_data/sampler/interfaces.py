"""What a sampler needs of a ledger (`Ledger`, `RemoteLedger`) and of a registry (`VersionRegistry`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rft_data.core.rows import GroupResult, Lease


class Books(Protocol):
    """Leases that survive a kill."""

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
        """Groups this consumer will never be handed, with the reason."""
        ...

    def grant(self, consumer: str, step: int, version: int, groups: Sequence[GroupResult]) -> Lease:
        """Write a lease of whole groups down."""
        ...

    def release(self, lease: Lease, reason: str) -> None:
        """Give a lease back untrained; nothing happens if it is not the step's present one."""
        ...

    def retire(self, consumer: str, group_ids: Sequence[str], reason: str) -> None:
        """Record that these groups will never be handed to this consumer."""
        ...


class Versions(Protocol):
    """The policy versions of a run."""

    @property
    def latest(self) -> int:
        """The newest version issued; -1 before the first."""
        ...

    def step_of(self, version: int) -> int:
        """Optimizer steps behind a version's weights."""
        ...
