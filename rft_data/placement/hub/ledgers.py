"""What a hub answers about its ledgers, one per run.

A consumer in another process says which epoch it holds; one that was replaced is refused. Checking the
epoch and writing happen under one lock, so nothing slips in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError
from rft_data.core.rows import GroupResult, Lease, content_id
from rft_data.placement.hub.wire import LedgerOf
from rft_data.sampler.ledger import Ledger


class Books:
    """The ledgers of one buffer, opened when first asked for."""

    def __init__(self, buffer: Buffer) -> None:
        """Keep books in `buffer`."""
        self._buffer = buffer
        self._ledgers: dict[str, Ledger] = {}
        self._lock = threading.RLock()
        self.calls: dict[str, Callable[..., Any]] = {
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

    def ledger(self, of: LedgerOf) -> Ledger:
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
                    f"{of.max_uses}; all parts of a run must name the same."
                )
            ledger.attempt = max(ledger.attempt, of.attempt)  # the hub outlived a start of the run
            return ledger

    def attach(self, of: LedgerOf, consumer: str) -> int:
        """`Ledger.attach`."""
        with self._lock:
            return self.ledger(of).attach(consumer)

    def find(self, of: LedgerOf, consumer: str, step: int, epoch: int) -> Lease | None:
        """`Ledger.find`."""
        return self.ledger(of).find(consumer, step, epoch=epoch)

    def leases(self, of: LedgerOf, consumer: str | None) -> list[Lease]:
        """`Ledger.leases`."""
        return self.ledger(of).leases(consumer)

    def retired(self, of: LedgerOf, consumer: str) -> dict[str, str]:
        """`Ledger.retired`."""
        return self.ledger(of).retired(consumer)

    def grant(
        self, of: LedgerOf, consumer: str, step: int, version: int, groups: list[GroupResult], epoch: int
    ) -> Lease:
        """`Ledger.grant`; asked again for the same groups, the stored lease comes back.

        Raises: as `Ledger.grant`; ConflictError too if the step has a lease of other groups.
        """
        with self._lock:
            ledger = self.ledger(of)
            known = ledger.find(consumer, step, epoch=epoch)
            if known is not None and _names(known) == _asked(version, groups):
                return known
            return ledger.grant(consumer, step, version, groups, epoch=epoch)

    def release(self, of: LedgerOf, lease: Lease, reason: str, epoch: int) -> None:
        """`Ledger.release`; a lease that is not the step's present one is left alone.

        A release that was held up on the way must not hit the lease its step was given since.
        """
        with self._lock:
            known = self.ledger(of).find(lease.consumer, lease.step, epoch=epoch)
            if known is not None and _names(known) == _names(lease):
                self.ledger(of).release(lease, reason, epoch=epoch)

    def retire(self, of: LedgerOf, consumer: str, group_ids: list[str], reason: str, epoch: int) -> None:
        """`Ledger.retire`, for the present holder of the consumer's epoch."""
        with self._lock:
            self.ledger(of).check_epoch(consumer, epoch)
            self.ledger(of).retire(consumer, group_ids, reason)

    def consume(self, of: LedgerOf, consumer: str, checkpoint_step: int, epoch: int) -> None:
        """`Ledger.consume`, for the present holder of the consumer's epoch."""
        with self._lock:
            self.ledger(of).check_epoch(consumer, epoch)
            self.ledger(of).consume(consumer, checkpoint_step)

    def consumed(self, of: LedgerOf, consumer: str) -> int:
        """`Ledger.consumed`."""
        return self.ledger(of).consumed(consumer)

    def is_consumed(self, of: LedgerOf, lease: Lease) -> bool:
        """`Ledger.is_consumed`."""
        return self.ledger(of).is_consumed(lease)


def _names(lease: Lease) -> tuple[int, str, tuple[str, ...]]:
    return lease.version, lease.digest, lease.group_ids


def _asked(version: int, groups: list[GroupResult]) -> tuple[int, str, tuple[str, ...]]:
    seqs = [seq for group in groups for seq in group.seqs]
    return version, content_id(seqs), tuple(group.ticket.group_id for group in groups)
