"""The sampler's book against the stored tables: nothing unaccounted for, nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rft_data.buffer import Buffer
from rft_data.errors import IntegrityError


def check_conservation(
    buffer: Buffer, run_id: str, consumer: str, counts: Mapping[str, int], steps: int
) -> None:
    """Compare `counts` (of `Sampler.conservation`) after `steps` steps with groups, leases and consumption.

    Raises: IntegrityError naming every figure that differs.
    """

    def rows_of(table: str) -> list[dict[str, Any]]:
        rows = buffer.read(table).to_pylist()
        return [r for r in rows if r["run_id"] == run_id and r.get("consumer", consumer) == consumer]

    groups, leases, consumed = rows_of("groups"), rows_of("leases"), rows_of("consumed")
    leased = Counter(group_id for row in leases for group_id in row["group_ids"])
    outcomes = Counter(row["outcome"] for row in groups)
    dropped = sum(row["outcome"] == "arrived" and not row["seqs"] for row in groups)
    used = counts["trained"] + counts["leased"]
    pairs = {
        "admitted": (counts["admitted"], sum(n for state, n in counts.items() if state != "admitted")),
        "arrived": (counts["ready"] + used + counts["stale"] + counts["dropped"], outcomes["arrived"]),
        "dropped": (counts["dropped"], dropped),
        "failed": (counts["failed"], outcomes["failed"]),
        "trained and leased": (used, len(leased)),
        "leases of one group": (1, max(leased.values(), default=1)),
        "steps leased": (steps, len(leases)),
        "steps consumed": (steps, len({row["step"] for row in consumed})),
    }
    wrong = [f"{name}: {book} and {stored}" for name, (book, stored) in pairs.items() if book != stored]
    if wrong:
        raise IntegrityError(
            f"run '{run_id}': groups are not conserved; book and tables differ in {'; '.join(wrong)}. "
            "This is a defect: keep the run folder and report it."
        )
