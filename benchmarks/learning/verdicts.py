"""From records to the table and the bar: which algorithms learn, by more than held-out noise.

It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.report import Bar

Rows = Sequence[Mapping[str, Any]]


def noise(rows: Rows) -> float:
    """Twice the standard error of the mean gain over seeds: held-out answers as independent draws."""
    variance = sum(row[at] * (1 - row[at]) / row["heldout"] for row in rows for at in ("start", "end"))
    return 2 * math.sqrt(variance) / len(rows)


def learned(rows: Rows) -> bool:
    """Whether the mean gain over seeds is more than noise; False for no rows."""
    return bool(rows) and mean(row["end"] - row["start"] for row in rows) > noise(rows)


def bar(rows: Rows, algorithms: Sequence[str]) -> Bar:
    """The share of the algorithms that learn."""
    fine = [name for name in algorithms if learned(_of(rows, name))]
    return Bar("algorithms_that_learn", len(fine) / len(algorithms), 1.0)


def table(rows: Rows, algorithms: Sequence[str]) -> str:
    """A Markdown table, one line an algorithm, seeds in order."""
    lines = ["| algorithm | start | end | mean gain ± noise | seeds | learned |", "|---|---|---|---|---|---|"]
    for name in algorithms:
        found = sorted(_of(rows, name), key=lambda row: row["seed"])
        if not found:
            lines.append(f"| `{name}` | | | | | not measured |")
            continue
        starts, ends = (", ".join(f"{row[at]:.1%}" for row in found) for at in ("start", "end"))
        gain = mean(row["end"] - row["start"] for row in found)
        seeds = ", ".join(str(row["seed"]) for row in found)
        verdict = "yes" if learned(found) else "no"
        cells = (f"`{name}`", starts, ends, f"{100 * gain:+.1f} ± {100 * noise(found):.1f}", seeds, verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(rows: Rows, name: str) -> Rows:
    return [row for row in rows if row["algorithm"] == name]
