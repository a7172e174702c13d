"""Protocols between the parts: structural, without implementation and heavy imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rft_data.core.groups import GroupResult, Lease, Ticket
from rft_data.core.rows import Experience, TaskKey

if TYPE_CHECKING:
    import pyarrow as pa


class Selector(Protocol):
    """Chooses the tasks to explore next; learns from their results."""

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks (a task may repeat only when there are fewer than n)."""
        ...

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Learn from real outcomes; failed, cancelled and unscored groups are ignored."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Everything that decides the next choice, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers for the run's log."""
        ...


class Pipeline(Protocol):
    """An ordered list of operators over whole groups."""

    @property
    def pipeline_hash(self) -> str:
        """Content hash of the operators and their arguments."""
        ...

    def run(self, experiences: pa.Table) -> pa.Table:
        """Judge every row: one annotation (schema.ANNOTATIONS) per input row, in input order."""
        ...

    def metrics(self) -> dict[str, float]:
        """Rows in and out and seconds per operator, since the last call."""
        ...

    def close(self) -> None:
        """End the operators' workers; idempotent."""
        ...


class Sampler(Protocol):
    """Decides both which groups may start and which train next, so that the two stay consistent.

    Group states are rebuilt from stored groups and leases; `state_dict` has only what these do not tell.
    """

    @property
    def outstanding(self) -> int:
        """Groups admitted and not yet trained, dropped, failed, cancelled or stale."""
        ...

    @property
    def ready(self) -> int:
        """Groups that could be leased now."""
        ...

    def admit(self, n: int, engine_version: int) -> list[Ticket]:
        """At most n tickets for new groups, as many as the staleness bound allows now."""
        ...

    def close(self, result: GroupResult) -> None:
        """Close a ticket: its group arrived (kept or dropped), failed or was cancelled."""
        ...

    def is_stale(self, result: GroupResult) -> bool:
        """Whether the weights that sampled a group are past the staleness bound now."""
        ...

    def lease(self, consumer: str, step: int, n_groups: int, version: int) -> Lease | None:
        """Whole groups for one step, or None when too few are ready. Idempotent on (consumer, step)."""
        ...

    def release(self, lease: Lease, reason: str) -> None:
        """End a lease without training it; its groups may be leased again, in their old order."""
        ...

    def settle(self, lease: Lease) -> None:
        """The lease's gradient step has been taken."""
        ...

    def conservation(self) -> dict[str, int]:
        """Groups by state; `admitted` equals the sum of the others."""
        ...

    def state_dict(self) -> dict[str, object]:
        """State that cannot be read from stored groups and leases, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where `state_dict` was taken."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers for the run's log."""
        ...


class BufferClient(Protocol):
    """The buffer methods that roles call; `Buffer` and the hub's client have them."""

    def append(self, rows: Sequence[Experience] | pa.Table) -> Any:
        """Store rows; returns when they are durable, with `seqs` per row (None for refused rows)."""
        ...

    def take(self, seqs: Sequence[int]) -> pa.Table:
        """Rows by number, in the order asked."""
        ...

    def leased(self, lease: Lease, pipeline_hash: str) -> LeasedBatch:
        """A lease's rows joined with their annotations."""
        ...

    def payload(self, payload_id: str) -> tuple[str, bytes]:
        """(media type, bytes) of a stored payload."""
        ...


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A lease and its rows: the experiences joined with their annotations, in lease order."""

    lease: Lease
    table: pa.Table
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Bytes of the images that its rows show, by payload id; the table then has a column `payloads`."""
