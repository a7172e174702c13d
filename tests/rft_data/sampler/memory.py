"""A ledger and a version registry in memory: the same promises as the stored ones, without their disk."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from rft_data.core.canonical import content_id
from rft_data.core.errors import ConflictError
from rft_data.core.groups import GroupResult, Lease, Ticket
from rft_data.core.rows import TaskKey
from rft_data.sampler import GroupSampler, History, make_sampler


class MemoryLedger:
    """Leases and retirements of one run; `fails_after` makes the next such call raise once it has written."""

    def __init__(self, max_uses: int = 1) -> None:
        self.run_id = "run"
        self.attempt = 0
        self.max_uses = max_uses
        self.fails_after = ""
        self._leases: dict[tuple[str, int], Lease] = {}
        self._retired: dict[str, str] = {}

    def find(self, consumer: str, step: int) -> Lease | None:
        return self._leases.get((consumer, step))

    def leases(self, consumer: str | None = None) -> Sequence[Lease]:
        return [lease for (who, _), lease in self._leases.items() if consumer in (None, who)]

    def retired(self, consumer: str) -> Mapping[str, str]:
        return dict(self._retired)

    def grant(self, consumer: str, step: int, version: int, groups: Sequence[GroupResult]) -> Lease:
        group_ids = tuple(group.ticket.group_id for group in groups)
        uses = Counter(g for lease in self._leases.values() for g in lease.group_ids)
        uses.update(group_ids)
        if (consumer, step) in self._leases or any(uses[g] > self.max_uses for g in group_ids):
            raise ConflictError("leased before")
        if any(g in self._retired for g in group_ids) or any(not group.seqs for group in groups):
            raise ConflictError("not to be leased")
        seqs = tuple(seq for group in groups for seq in group.seqs)
        lease = Lease(consumer, step, 0, version, seqs, group_ids, content_id(list(seqs)))
        self._leases[consumer, step] = lease
        self._fail("grant")
        return lease

    def release(self, lease: Lease, reason: str) -> None:
        present = self._leases.get((lease.consumer, lease.step))
        if present is not None and dataclasses.replace(present, epoch=lease.epoch) == lease:
            del self._leases[lease.consumer, lease.step]
        self._fail("release")

    def retire(self, consumer: str, group_ids: Sequence[str], reason: str) -> None:
        self._retired |= {g: reason for g in group_ids if g not in self._retired}
        self._fail("retire")

    def _fail(self, call: str) -> None:
        if self.fails_after == call:
            self.fails_after = ""
            raise OSError(f"{call} took effect, its answer was lost")


class MemoryVersions:
    """Versions of one run; numbers may have gaps."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    @property
    def latest(self) -> int:
        return max(self._steps, default=-1)

    def optimizer_step(self, version: int) -> int:
        return self._steps[version]

    def issue(self, step: int, gap: int = 0) -> int:
        version = self.latest + 1 + gap
        self._steps[version] = step
        return version


def result(
    ticket: Ticket,
    outcome: str = "arrived",
    *,
    kept: bool = True,
    version_min: int | None = None,
    rewards: tuple[float | None, ...] = (0.0, 1.0),
    taskset: str = "a",
) -> GroupResult:
    seqs = (2 * ticket.ordinal, 2 * ticket.ordinal + 1) if kept and outcome == "arrived" else ()
    version = ticket.version if version_min is None else version_min
    dropped_by = "" if kept else "filter"
    return GroupResult(ticket, TaskKey(taskset, "t"), rewards, outcome, version, seqs, dropped_by)


class House:
    """A sampler with ledger and registry, and the groups that were stored."""

    def __init__(
        self,
        use: str = "fifo",
        *,
        groups: int = 2,
        bound: int | None = 0,
        max_uses: int = 1,
        history: Sequence[GroupResult] = (),
        **args: object,
    ) -> None:
        self.use, self.args, self.groups, self.bound = use, args, groups, bound
        self.ledger = MemoryLedger(max_uses)
        self.versions = MemoryVersions()
        self.versions.issue(0)
        self.history = list(history)
        self.sampler = self.start()

    def start(self, settled_steps: int = 0) -> GroupSampler:
        self.sampler = make_sampler(
            self.use,
            self.args,
            ledger=self.ledger,
            versions=self.versions,
            consumer="trainer",
            groups_per_step=self.groups,
            max_staleness=self.bound,
            history=History(self.history, settled_steps=settled_steps),
        )
        return self.sampler

    def close(self, ticket: Ticket, outcome: str = "arrived", **changes: object) -> None:
        self.history.append(result(ticket, outcome, **changes))
        self.sampler.close(self.history[-1])

    def fill(self, n: int, version: int = 0) -> list[Ticket]:
        tickets = self.sampler.admit(n, version)
        assert len(tickets) == n
        for ticket in tickets:
            self.close(ticket)
        return tickets

    def lease(self, step: int, n: int | None = None) -> Lease | None:
        return self.sampler.lease("trainer", step, self.groups if n is None else n, self.versions.latest)

    def train(self, step: int, n: int | None = None) -> list[int]:
        """Lease and settle one step; the ordinals of its groups."""
        lease = self.lease(step, n)
        assert lease is not None, self.sampler.conservation()
        self.versions.issue(step + 1)
        self.sampler.settle(lease)
        return [int(group_id.rpartition("-")[2]) for group_id in lease.group_ids]


def stored(run: str, n: int, **changes: object) -> list[GroupResult]:
    """Groups another run has stored."""
    return [result(Ticket(f"{run}/0-{i:08d}", i, 7), **changes) for i in range(n)]
