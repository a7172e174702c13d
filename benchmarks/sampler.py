"""How long a decision of the sampler takes with very many live groups.

`python -m benchmarks.sampler [--groups N] [--policies fifo ...]`. The ledger is a dict: what is measured is
the sampler itself, in processor time (it waits for nothing). A lease of 64 groups chooses them, moves
them and takes them out of every index.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import Bar, finish
from rft_data.core.groups import GroupResult, Lease, Ticket
from rft_data.core.rows import TaskKey
from rft_data.sampler import GroupSampler, History, make_sampler

BATCH = 64
DECISIONS = 50
LIMIT_MS = 5.0
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "fifo": {},
    "windowed": {"window": 256},
    "ready_first": {},
    "fresh_first": {},
    "replay": {"max_reuse": 4, "samples_per_insert": 2.0},
    "mix": {"parts": {"own": 3, "old/": 1}},
}


class DictLedger:
    """Leases in memory, with the checks that cost nothing."""

    def __init__(self) -> None:
        self.run_id, self.attempt, self.max_uses = "run", 0, 4
        self._leases: dict[int, Lease] = {}

    def find(self, consumer: str, step: int) -> Lease | None:
        """The lease of a step."""
        return self._leases.get(step)

    def leases(self, consumer: str | None = None) -> Sequence[Lease]:
        """Every lease."""
        return list(self._leases.values())

    def retired(self, consumer: str) -> Mapping[str, str]:
        """Nothing is remembered."""
        return {}

    def grant(self, consumer: str, step: int, version: int, groups: Sequence[GroupResult]) -> Lease:
        """Write a lease down."""
        group_ids = tuple(group.ticket.group_id for group in groups)
        seqs = tuple(seq for group in groups for seq in group.seqs)
        self._leases[step] = Lease(consumer, step, 0, version, seqs, group_ids, "")
        return self._leases[step]

    def release(self, lease: Lease, reason: str) -> None:
        """Forget a lease."""
        del self._leases[lease.step]

    def retire(self, consumer: str, group_ids: Sequence[str], reason: str) -> None:
        """Nothing is remembered."""


class Steps:
    """Version n is the weights after n steps."""

    latest = 0

    def optimizer_step(self, version: int) -> int:
        """The version itself."""
        return version


def closed(group_id: str, number: int, version: int) -> GroupResult:
    """A group of two rows that arrived."""
    ticket = Ticket(group_id, number, version)
    return GroupResult(
        ticket, TaskKey("a", "t"), (0.0, number % 7), "arrived", version, (2 * number, 2 * number + 1)
    )


def filled(use: str, groups: int) -> tuple[GroupSampler, Steps, float]:
    """A sampler with that many live groups, an eighth of them open; and the seconds per ticket."""
    others = groups // 4 if use == "mix" else 0
    steps = Steps()
    sampler = make_sampler(
        use,
        POLICIES[use],
        ledger=DictLedger(),
        versions=steps,
        consumer="trainer",
        groups_per_step=BATCH,
        max_staleness=None,
        history=History([closed(f"old/0-{n:08d}", n, 0) for n in range(others)]),
    )
    start = time.process_time()
    tickets = sampler.admit(groups - others, 0)
    per_ticket = (time.process_time() - start) / len(tickets)
    for ticket in tickets[: len(tickets) * 7 // 8]:
        sampler.close(closed(ticket.group_id, ticket.ordinal, ticket.version))
    return sampler, steps, per_ticket


def decisions(sampler: GroupSampler, steps: Steps) -> dict[str, list[float]]:
    """Milliseconds of leases and settles; between them as many groups arrive as are trained."""
    spent: dict[str, list[float]] = {"lease": [], "settle": [], "admit": [], "close": []}

    def timed(name: str, act: Any, share: int = 1) -> Any:
        start = time.process_time()
        result = act()
        spent[name].append((time.process_time() - start) * 1e3 / share)
        return result

    for step in range(DECISIONS):
        lease = timed("lease", lambda s=step: sampler.lease("trainer", s, BATCH, s))
        if lease is None:
            raise RuntimeError(f"no lease for step {step}: {sampler.conservation()}")
        steps.latest = step + 1
        timed("settle", lambda one=lease: sampler.settle(one))
        tickets = timed("admit", lambda s=step: sampler.admit(BATCH, s + 1), BATCH)
        results = [closed(t.group_id, t.ordinal, t.version) for t in tickets]
        timed("close", lambda many=results: [sampler.close(result) for result in many], BATCH)
    return spent


def main() -> None:
    """Print the table, the bars and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    args = parser.parse_args()
    groups = args.groups
    bars, figures = [], {}
    print(f"{groups:,} live groups, {BATCH} per lease, {DECISIONS} leases; milliseconds of processor time")
    print(
        f"{'policy':<14}{'lease, median':>14}{'lease, worst':>14}{'settle':>9}{'admit':>9}{'close':>9} (each)"
    )
    for use in args.policies:
        sampler, steps, per_ticket = filled(use, groups)
        gc.freeze()  # a million live objects of the benchmark's own are not the sampler's pauses
        spent = decisions(sampler, steps)
        median = {name: statistics.median(times) for name, times in spent.items()}
        worst = max(spent["lease"])
        print(
            f"{use:<14}{median['lease']:>14.2f}{worst:>14.2f}{median['settle']:>9.2f}"
            f"{median['admit']:>9.4f}{median['close']:>9.4f}",
            flush=True,
        )
        bars.append(Bar(f"sampler_lease_ms_{use}", median["lease"], LIMIT_MS, ceiling=True))
        figures[use] = {**median, "lease_worst": worst, "admit_filling": per_ticket * 1e3}
        del sampler, spent
        gc.unfreeze()
        gc.collect()
    finish(bars, {}, figures)


if __name__ == "__main__":
    main()
