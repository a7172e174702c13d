"""The leases of groups by consumer and step, and the steps among them that a checkpoint holds.

An append-only log of lease events (table `leases`) and of consumption, kept as a summary in memory.
Idempotent on (consumer, step): a second request gets the same rows in the same order. Consumers do not
affect each other.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.errors import ConflictError, FencedError
from rft_data.core.failpoints import failpoint
from rft_data.core.groups import GroupResult, Lease
from rft_data.core.stored_rows import LeaseEventRow
from rft_data.core.words import LeaseEvent

CONSUMER = "trainer"
"""The name of a run's trainer as a consumer."""
_COLUMNS = ["kind", "run_id", "consumer", "step", "epoch", "version", "seqs", "group_ids", "digest", "reason"]


class Ledger:
    """Leases and consumption of one run. Safe to use from many threads."""

    def __init__(self, buffer: Buffer, run_id: str, attempt: int, *, max_uses: int = 1) -> None:
        """Read the run's events.

        `attempt`: number of earlier starts of the run; part of the ids of new groups.
        `max_uses`: how often one group may be leased to one consumer, released leases not counted.
        """
        self._buffer = buffer
        self.run_id = run_id
        self.attempt = attempt
        self.max_uses = max_uses
        self._lock = threading.RLock()
        self._must_reload = False
        self._load()

    def _load(self) -> None:
        self._events = 0
        self._epochs: dict[str, int] = {}
        self._leases: dict[tuple[str, int], Lease] = {}
        self._uses: Counter[tuple[str, str]] = Counter()
        self._retired: dict[tuple[str, str], str] = {}
        for row in self._buffer.read("leases", _COLUMNS).to_pylist():
            if row["run_id"] == self.run_id:
                self._apply(row)
        consumed = self._buffer.read("consumed", ["run_id", "consumer", "step"]).to_pylist()
        self._consumed = {(row["consumer"], row["step"]) for row in consumed if row["run_id"] == self.run_id}

    def _apply(self, row: LeaseEventRow) -> None:
        """Apply one stored event to the summary in memory."""
        self._events += 1
        consumer, step, group_ids = row["consumer"], row["step"], tuple(row["group_ids"])
        if row["kind"] == LeaseEvent.ATTACH:
            self._epochs[consumer] = max(row["epoch"], self._epochs.get(consumer, 0))
        elif row["kind"] == LeaseEvent.GRANT:
            self._leases[consumer, step] = Lease(
                consumer, step, row["epoch"], row["version"], tuple(row["seqs"]), group_ids, row["digest"]
            )
            self._uses.update((consumer, group_id) for group_id in group_ids)
        elif row["kind"] == LeaseEvent.RELEASE:
            self._leases.pop((consumer, step), None)
            self._uses.subtract((consumer, group_id) for group_id in group_ids)
        else:
            self._retired.update({(consumer, group_id): row["reason"] for group_id in group_ids})

    # --- consumers ---------------------------------------------------------------------------------

    def attach(self, consumer: str) -> int:
        """Take over as this consumer, and return its new epoch; holders of an older epoch are fenced."""
        with self._writing():
            epoch = self._epochs.get(consumer, 0) + 1
            self._write(LeaseEvent.ATTACH, consumer, epoch=epoch)
            return epoch

    def consumers(self) -> list[str]:
        """All consumers that attached or were granted a lease, sorted."""
        with self._reading():
            return sorted({*self._epochs, *(who for who, _ in self._leases)})

    def check_epoch(self, consumer: str, epoch: int | None) -> None:
        """Refuse a consumer that was replaced; None is the caller in the owner's process, never replaced.

        Raises: FencedError.
        """
        current = self._epochs.get(consumer, 0)
        if epoch is not None and epoch != current:
            raise FencedError(
                f"consumer '{consumer}' holds epoch {epoch}, the current epoch is {current}: another process "
                "took over as this consumer. Stop this one; what it writes from now on is refused."
            )

    # --- leases ------------------------------------------------------------------------------------

    def find(self, consumer: str, step: int, *, epoch: int | None = None) -> Lease | None:
        """The lease already granted for this step, if any, under the consumer's present epoch."""
        with self._reading():
            self.check_epoch(consumer, epoch)
            lease = self._leases.get((consumer, step))
            current = self._epochs.get(consumer, 0)
            return None if lease is None else dataclasses.replace(lease, epoch=current)

    def leases(self, consumer: str | None = None) -> list[Lease]:
        """Every lease of the run that was not released, or one consumer's."""
        with self._reading():
            return [lease for (who, _), lease in self._leases.items() if consumer in (None, who)]

    def retired(self, consumer: str) -> dict[str, str]:
        """Groups that may never be leased to this consumer, with the reason.

        Groups lost in a repair are among them, for every consumer.
        """
        with self._reading():
            return {group_id: why for (who, group_id), why in self._retired.items() if who in (consumer, "")}

    def grant(
        self,
        consumer: str,
        step: int,
        version: int,
        groups: Sequence[GroupResult],
        *,
        epoch: int | None = None,
    ) -> Lease:
        """Store a lease of whole groups; once this returns, the lease survives a kill.

        Raises: ConflictError if the step has a lease already, or a group is leased as often as
            `max_uses` allows, or has no rows; FencedError if the consumer was replaced.
        """
        with self._writing():
            self.check_epoch(consumer, epoch)
            if (consumer, step) in self._leases:
                raise ConflictError(
                    f"step {step} of '{consumer}' has a lease already; settle or redeliver that one."
                )
            self._check_uses(consumer, groups)
            seqs = [seq for group in groups for seq in group.seqs]
            group_ids = [group.ticket.group_id for group in groups]
            current = self._epochs.get(consumer, 0)
            self._write(
                LeaseEvent.GRANT,
                consumer,
                step=step,
                epoch=current,
                version=version,
                seqs=seqs,
                group_ids=group_ids,
            )
            failpoint("lease.granted")
            return self._leases[consumer, step]

    def _check_uses(self, consumer: str, groups: Sequence[GroupResult]) -> None:
        asked = Counter(group.ticket.group_id for group in groups)
        for group in groups:
            group_id = group.ticket.group_id
            why = self._retired.get((consumer, group_id)) or self._retired.get(("", group_id))
            if why is not None:
                raise ConflictError(f"group '{group_id}' is retired ({why}); it may not be leased any more.")
            if not group.seqs:
                raise ConflictError(f"group '{group_id}' has no row that training may use; do not lease it.")
            if self._uses[consumer, group_id] + asked[group_id] > self.max_uses:
                times = f"{self._uses[consumer, group_id]} times" if self.max_uses > 1 else "before"
                raise ConflictError(
                    f"group '{group_id}' was leased to '{consumer}' {times}; it may be used "
                    f"{self.max_uses} time{'s' if self.max_uses > 1 else ''}."
                )

    def release(self, lease: Lease, reason: str, *, epoch: int | None = None) -> None:
        """End a lease without training it: its groups may be leased again. Idempotent.

        Does nothing if the lease is not the step's present one: a late release must not end the lease
        that the step was granted since.
        Raises: ConflictError if a checkpoint holds the step; FencedError if the consumer was replaced.
        """
        with self._writing():
            self.check_epoch(lease.consumer, epoch)
            if (lease.consumer, lease.step) in self._consumed:
                raise ConflictError(
                    f"step {lease.step} of '{lease.consumer}' is part of a checkpoint; it cannot be released."
                )
            present = self._leases.get((lease.consumer, lease.step))
            if present is not None and (present.digest, present.version, present.group_ids) == (
                lease.digest,
                lease.version,
                lease.group_ids,
            ):
                self._write(
                    LeaseEvent.RELEASE,
                    lease.consumer,
                    step=lease.step,
                    epoch=self._epochs.get(lease.consumer, 0),
                    seqs=lease.seqs,
                    group_ids=lease.group_ids,
                    reason=reason,
                )

    def retire(self, consumer: str, group_ids: Sequence[str], reason: str) -> None:
        """Record that these groups may never be leased to this consumer (`stale`, ...). Idempotent."""
        with self._writing():
            fresh = [group_id for group_id in group_ids if (consumer, group_id) not in self._retired]
            if fresh:
                self._write(LeaseEvent.RETIRE, consumer, group_ids=fresh, reason=reason)

    def _write(
        self,
        kind: LeaseEvent,
        consumer: str,
        *,
        step: int = -1,
        epoch: int = 0,
        version: int = -1,
        seqs: Sequence[int] = (),
        group_ids: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        row: LeaseEventRow = {
            "kind": kind,
            "run_id": self.run_id,
            "consumer": consumer,
            "step": step,
            "epoch": epoch,
            "version": version,
            "seqs": list(seqs),
            "group_ids": list(group_ids),
            "digest": content_id(list(seqs)),
            "reason": reason,
        }
        self._buffer.add_rows("leases", [{"event_id": content_id(self._events, row), **row}])
        self._apply(row)

    # --- consumption -------------------------------------------------------------------------------

    def consume(self, consumer: str, checkpoint_step: int) -> None:
        """Record that a complete checkpoint holds every step before `checkpoint_step`; idempotent."""
        with self._writing():
            fresh = sorted(
                step
                for who, step in self._leases
                if who == consumer and step < checkpoint_step and (who, step) not in self._consumed
            )
            rows = [
                {
                    "lease_id": f"{self.run_id}/{consumer}/{step}",
                    "run_id": self.run_id,
                    "consumer": consumer,
                    "step": step,
                    "checkpoint_step": checkpoint_step,
                }
                for step in fresh
            ]
            failpoint("settle.consume")
            self._buffer.add_rows("consumed", rows)
            failpoint("settle.consumed")
            self._consumed.update((consumer, step) for step in fresh)

    def consumed(self, consumer: str) -> int:
        """How many of the consumer's steps are recorded in a checkpoint."""
        with self._reading():
            return sum(who == consumer for who, _ in self._consumed)

    def is_consumed(self, lease: Lease) -> bool:
        """Whether a checkpoint holds the lease's gradient step."""
        with self._reading():
            return (lease.consumer, lease.step) in self._consumed

    # --- one writer at a time; after a failed write the tables are read again ------------------------

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            if self._must_reload:
                self._load()
                self._must_reload = False
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading():
            self._must_reload = True
            try:
                yield
                self._must_reload = False
            except (ConflictError, FencedError):
                self._must_reload = False  # refused before anything was written
                raise
