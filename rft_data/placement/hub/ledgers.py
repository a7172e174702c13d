"""The calls of a hub about its ledgers, one per run.

A consumer in another process sends its epoch; a consumer that was replaced is refused. The epoch is checked
and the ledger is written under one lock, so no other call can come in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.errors import ConflictError
from rft_data.core.groups import GroupResult, Lease
from rft_data.placement.hub.wire import LedgerKey
from rft_data.sampler.ledger import Ledger


class Ledgers:
    """The ledgers of one buffer, opened when first asked for."""

    def __init__(self, buffer: Buffer) -> None:
        """`buffer`: where the ledgers are stored."""
        self._buffer = buffer
        self._ledgers: dict[str, Ledger] = {}
        self._lock = threading.RLock()
        self.calls: dict[str, Callable[..., object]] = {
            "attach": self.attach,
            "find": self.find,
            "leases": self.leases,
            "retired": self.retired,
            "grant": self.grant,
            "release": self.release,
            "retire": self.retire,
            "consume": self.consume,
            "consumed": self.consumed,
            "is_consumed": self.is_consumed,
        }

    def ledger(self, of: LedgerKey) -> Ledger:
        """The one ledger of a run.

        Raises: ConflictError if it is open with another `max_uses`.
        """
        with self._lock:
            ledger = self._ledgers.get(of.run_id)
            if ledger is None:
                ledger = Ledger(self._buffer, of.run_id, of.attempt, max_uses=of.max_uses)
                self._ledgers[of.run_id] = ledger
            if ledger.max_uses != of.max_uses:
                raise ConflictError(
                    f"the ledger of run '{of.run_id}' is open with max_uses={ledger.max_uses}, asked for is "
                    f"{of.max_uses}; use the same max_uses in all parts of a run."
                )
            ledger.attempt = max(ledger.attempt, of.attempt)  # the run was started again while the hub ran on
            return ledger

    def attach(self, of: LedgerKey, consumer: str) -> int:
        """`Ledger.attach`."""
        with self._lock:
            return self.ledger(of).attach(consumer)

    def find(self, of: LedgerKey, consumer: str, step: int, epoch: int) -> Lease | None:
        """`Ledger.find`."""
        return self.ledger(of).find(consumer, step, epoch=epoch)

    def leases(self, of: LedgerKey, consumer: str | None) -> list[Lease]:
        """`Ledger.leases`."""
        return self.ledger(of).leases(consumer)

    def retired(self, of: LedgerKey, consumer: str) -> dict[str, str]:
        """`Ledger.retired`."""
        return self.ledger(of).retired(consumer)

    def grant(
        self, of: LedgerKey, consumer: str, step: int, version: int, groups: list[GroupResult], epoch: int
    ) -> Lease:
        """`Ledger.grant`; asked again for the same groups, it returns the stored lease.

        Raises: as `Ledger.grant`; ConflictError too if the step has a lease of other groups.
        """
        with self._lock:
            ledger = self.ledger(of)
            known = ledger.find(consumer, step, epoch=epoch)
            if known is not None and _lease_content(known) == _asked_content(version, groups):
                return known
            return ledger.grant(consumer, step, version, groups, epoch=epoch)

    def release(self, of: LedgerKey, lease: Lease, reason: str, epoch: int) -> None:
        """`Ledger.release`; a lease that is no longer the one of its step stays as it is.

        A release that arrives late must not release the lease that its step was given since.
        """
        with self._lock:
            known = self.ledger(of).find(lease.consumer, lease.step, epoch=epoch)
            if known is not None and _lease_content(known) == _lease_content(lease):
                self.ledger(of).release(lease, reason, epoch=epoch)

    def retire(self, of: LedgerKey, consumer: str, group_ids: list[str], reason: str, epoch: int) -> None:
        """`Ledger.retire`, for the present holder of the consumer's epoch."""
        with self._lock:
            self.ledger(of).check_epoch(consumer, epoch)
            self.ledger(of).retire(consumer, group_ids, reason)

    def consume(self, of: LedgerKey, consumer: str, checkpoint_step: int, epoch: int) -> None:
        """`Ledger.consume`, for the present holder of the consumer's epoch."""
        with self._lock:
            self.ledger(of).check_epoch(consumer, epoch)
            self.ledger(of).consume(consumer, checkpoint_step)

    def consumed(self, of: LedgerKey, consumer: str) -> int:
        """`Ledger.consumed`."""
        return self.ledger(of).consumed(consumer)

    def is_consumed(self, of: LedgerKey, lease: Lease) -> bool:
        """`Ledger.is_consumed`."""
        return self.ledger(of).is_consumed(lease)


def _lease_content(lease: Lease) -> tuple[int, str, tuple[str, ...]]:
    return lease.version, lease.digest, lease.group_ids


def _asked_content(version: int, groups: list[GroupResult]) -> tuple[int, str, tuple[str, ...]]:
    seqs = [seq for group in groups for seq in group.seqs]
    return version, content_id(seqs), tuple(group.ticket.group_id for group in groups)
