"""From records to the table and the bars: which algorithms learn, by more than noise.

It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean, stdev
from typing import Any

from benchmarks.learning.cells import Variant
from benchmarks.report import Bar

Rows = Sequence[Mapping[str, Any]]


def noise(rows: Rows) -> float:
    """Twice the standard error of the mean gain over seeds: the greater of two.

    One takes held-out answers as independent draws, though all runs answer the same tasks; the other is by
    how far the seeds' gains differ, since runs that learn nothing still move. A single seed has the first
    alone, and of two the second is no 95 % bound.
    """
    variance = sum(row[at] * (1 - row[at]) / row["heldout"] for row in rows for at in ("start", "end"))
    seed_error = stdev(_gains(rows)) / math.sqrt(len(rows)) if len(rows) > 1 else 0.0
    return 2 * max(math.sqrt(variance) / len(rows), seed_error)


def learned(rows: Rows) -> bool:
    """Whether the mean gain over seeds is more than noise; False for no rows."""
    return bool(rows) and gained(rows) > noise(rows)


def lead(rows: Rows, control: Rows) -> float | None:
    """By how much the mean gain is greater than the control's, in units of the noise of both.

    None where one of them has no rows, or there is no noise.
    """
    if not rows or not control:
        return None
    return _in_noise(gained(rows) - gained(control), math.hypot(noise(rows), noise(control)))


def bars(rows: Rows, algorithms: Mapping[Variant, Sequence[str]], control: str) -> list[Bar]:
    """The shares of the algorithms that learn, by variant, the control's gain, and the least lead over it."""
    names = {Variant.PLAIN: "algorithms_that_learn", Variant.STALE: "stale_algorithms_that_learn"}
    shares = [
        Bar(names[variant], mean(learned(_of(rows, name, variant)) for name in known), 1.0)
        for variant, known in algorithms.items()
    ]
    control_rows = _of(rows, control, Variant.SHUFFLED)
    cells = [(name, variant) for variant, known in algorithms.items() for name in known]
    leads = [lead(_of(rows, name, variant), control_rows) for name, variant in cells]
    told = [one for one in leads if one is not None]
    in_noise = _in_noise(gained(control_rows), noise(control_rows)) if control_rows else None
    return [
        *shares,
        Bar("control_gain_in_noise", in_noise, 1.0, ceiling=True),
        Bar("least_lead_over_control_in_noise", min(told) if len(told) == len(leads) else None, 1.0),
    ]


def _in_noise(gain: float, error: float) -> float | None:
    """A gain in units of its noise; None where there is none, as of models that pass nothing."""
    return gain / error if error else None


def _gains(rows: Rows) -> list[float]:
    return [row["end"] - row["start"] for row in rows]


def gained(rows: Rows) -> float:
    """The mean gain over seeds."""
    return mean(_gains(rows))


def table(rows: Rows, algorithms: Sequence[str]) -> str:
    """A Markdown table, one line an algorithm and variant, seeds in order; plain ones also if missing."""
    lines = ["| algorithm | start | end | mean gain ± noise | seeds | learned |", "|---|---|---|---|---|---|"]
    for variant, algorithm in product(Variant, algorithms):
        found = sorted(_of(rows, algorithm, variant), key=lambda row: row["seed"])
        name = algorithm if variant == Variant.PLAIN else f"{algorithm} {variant}"
        if not found:
            if variant == Variant.PLAIN:
                lines.append(f"| `{name}` | | | | | not measured |")
            continue
        starts, ends = (", ".join(f"{row[at]:.1%}" for row in found) for at in ("start", "end"))
        gain = gained(found)
        seeds = ", ".join(str(row["seed"]) for row in found)
        verdict = "yes" if learned(found) else "no"
        cells = (f"`{name}`", starts, ends, f"{100 * gain:+.1f} ± {100 * noise(found):.1f}", seeds, verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(rows: Rows, name: str, variant: Variant) -> Rows:
    return [row for row in rows if (row["algorithm"], row["variant"]) == (name, variant)]
