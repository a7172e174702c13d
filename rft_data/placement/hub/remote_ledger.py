"""The ledger of a run in another process: the methods of `Ledger`; each call sends this consumer's epoch.

A sampler uses it like a `Ledger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from rft_data.core.groups import GroupResult, Lease
from rft_data.placement.hub.connection import Connection
from rft_data.placement.hub.wire import LedgerKey

DEADLINE_S = 150.0
_LEASE = TypeAdapter(Lease)


class RemoteLedger:
    """Leases and consumption of one run, kept by a hub. Every call has DEADLINE_S (StalledError)."""

    def __init__(self, connection: Connection, run_id: str, attempt: int, *, max_uses: int = 1) -> None:
        """Made by `HubClient.ledger`; the arguments are those of `Ledger`."""
        self._connection = connection
        self._key = LedgerKey(run_id, attempt, max_uses)
        self._epochs: dict[str, int] = {}
        self.run_id = run_id
        self.attempt = attempt
        self.max_uses = max_uses

    def _call(self, method: str, **args: object) -> Any:
        return self._connection.call(method, {"of": self._key, **args}, deadline_s=DEADLINE_S)

    def _epoch(self, consumer: str, epoch: int | None) -> int:
        """The epoch to send: `epoch`, or the one this object attached with; 0 if it has not attached."""
        return self._epochs.get(consumer, 0) if epoch is None else epoch

    def attach(self, consumer: str) -> int:
        """`Ledger.attach`; later calls of this object hold the epoch it returns."""
        self._epochs[consumer] = epoch = int(self._call("attach", consumer=consumer))
        return epoch

    def find(self, consumer: str, step: int, *, epoch: int | None = None) -> Lease | None:
        """`Ledger.find`."""
        held = self._epoch(consumer, epoch)
        found = self._call("find", consumer=consumer, step=step, epoch=held)
        return None if found is None else _LEASE.validate_python(found)

    def leases(self, consumer: str | None = None) -> list[Lease]:
        """`Ledger.leases`."""
        return [_LEASE.validate_python(lease) for lease in self._call("leases", consumer=consumer)]

    def retired(self, consumer: str) -> dict[str, str]:
        """`Ledger.retired`."""
        return dict(self._call("retired", consumer=consumer))

    def grant(
        self,
        consumer: str,
        step: int,
        version: int,
        groups: Sequence[GroupResult],
        *,
        epoch: int | None = None,
    ) -> Lease:
        """`Ledger.grant`; asked again for the same groups and version, it returns the stored lease."""
        granted = self._call(
            "grant",
            consumer=consumer,
            step=step,
            version=version,
            groups=list(groups),
            epoch=self._epoch(consumer, epoch),
        )
        return _LEASE.validate_python(granted)

    def release(self, lease: Lease, reason: str, *, epoch: int | None = None) -> None:
        """`Ledger.release`."""
        self._call("release", lease=lease, reason=reason, epoch=self._epoch(lease.consumer, epoch))

    def retire(
        self, consumer: str, group_ids: Sequence[str], reason: str, *, epoch: int | None = None
    ) -> None:
        """`Ledger.retire`. Raises: FencedError if the consumer was replaced."""
        held = self._epoch(consumer, epoch)
        self._call("retire", consumer=consumer, group_ids=list(group_ids), reason=reason, epoch=held)

    def consume(self, consumer: str, checkpoint_step: int, *, epoch: int | None = None) -> None:
        """`Ledger.consume`. Raises: FencedError if the consumer was replaced."""
        held = self._epoch(consumer, epoch)
        self._call("consume", consumer=consumer, checkpoint_step=checkpoint_step, epoch=held)

    def consumed(self, consumer: str) -> int:
        """`Ledger.consumed`."""
        return int(self._call("consumed", consumer=consumer))

    def is_consumed(self, lease: Lease) -> bool:
        """`Ledger.is_consumed`."""
        return bool(self._call("is_consumed", lease=lease))
