"""Who was handed which rows for which step, and which of those steps a checkpoint holds.

Append-only and idempotent on (consumer, step): asked again, the same rows come back in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.buffer import Buffer
from rft_data.errors import ConflictError
from rft_data.rows import Lease, content_id

_LEASE_COLUMNS = ["run_id", "consumer", "step", "epoch", "version", "seqs", "group_ids", "digest"]


class Ledger:
    """Leases and consumption of one run."""

    def __init__(self, buffer: Buffer, run_id: str, epoch: int) -> None:
        """Read the run's leases; `epoch` grows with each start of the run."""
        self._buffer = buffer
        self.run_id = run_id
        self.epoch = epoch
        self._leases: dict[tuple[str, int], Lease] = {}
        for row in buffer.read("leases", _LEASE_COLUMNS).to_pylist():
            if row.pop("run_id") == run_id:
                row |= {"seqs": tuple(row["seqs"]), "group_ids": tuple(row["group_ids"])}
                self._leases[row["consumer"], row["step"]] = Lease(**row)
        self._taken = {
            (who, g): lease.step for (who, _), lease in self._leases.items() for g in lease.group_ids
        }
        consumed = buffer.read("consumed", ["run_id", "consumer", "step"]).to_pylist()
        self._consumed = {(row["consumer"], row["step"]) for row in consumed if row["run_id"] == run_id}

    def find(self, consumer: str, step: int) -> Lease | None:
        """The lease already granted for this step, if any."""
        return self._leases.get((consumer, step))

    def leases(self) -> list[Lease]:
        """Every lease of the run."""
        return list(self._leases.values())

    def grant(
        self, consumer: str, step: int, version: int, seqs: Sequence[int], group_ids: Sequence[str]
    ) -> Lease:
        """Write a lease down; when this returns it survives a kill.

        Raises: ConflictError if the step has a lease already, or a group is in another lease.
        """
        if (consumer, step) in self._leases:
            raise ConflictError(
                f"step {step} of '{consumer}' has a lease already; settle or redeliver that one."
            )
        for group_id in group_ids:
            if (consumer, group_id) in self._taken:
                raise ConflictError(
                    f"group '{group_id}' was leased to '{consumer}' for step "
                    f"{self._taken[consumer, group_id]}; a group is trained once."
                )
        lease = Lease(
            consumer, step, self.epoch, version, tuple(seqs), tuple(group_ids), content_id(list(seqs))
        )
        row = {name: getattr(lease, name) for name in _LEASE_COLUMNS if name != "run_id"}
        self._buffer.add_rows(
            "leases", [{"lease_id": self._id(consumer, step), "run_id": self.run_id, **row}]
        )
        self._leases[consumer, step] = lease
        self._taken.update({(consumer, group_id): step for group_id in group_ids})
        return lease

    def consume(self, consumer: str, checkpoint_step: int) -> None:
        """Record that a complete checkpoint holds every step before `checkpoint_step`; idempotent."""
        fresh = sorted(
            step
            for who, step in self._leases
            if who == consumer and step < checkpoint_step and (who, step) not in self._consumed
        )
        self._buffer.add_rows(
            "consumed",
            [
                {
                    "lease_id": self._id(consumer, step),
                    "run_id": self.run_id,
                    "consumer": consumer,
                    "step": step,
                    "checkpoint_step": checkpoint_step,
                }
                for step in fresh
            ],
        )
        self._consumed.update((consumer, step) for step in fresh)

    def consumed(self, consumer: str) -> int:
        """How many of the consumer's steps are recorded in a checkpoint."""
        return sum(who == consumer for who, _ in self._consumed)

    def _id(self, consumer: str, step: int) -> str:
        return f"{self.run_id}/{consumer}/{step}"
