"""From records to the table and the bars: tokens until an accuracy, with replay and without.

It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.replay.cells import SAMPLERS
from benchmarks.report import Bar
from benchmarks.selectors.cells import crossed

Rows = Sequence[Mapping[str, Any]]
ASKED: float = SAMPLERS["replay"]["samples_per_insert"]
LEVEL = 0.9
"""Share of what the run without replay ends with: nearer to it, a curve levels off and noise decides."""


def tokens_until(curve: Sequence[tuple[int, int, float]], target: float) -> float:
    """Tokens when the accuracy first is `target`, on the line between two evaluations; infinite: never."""
    crossing = crossed(curve, target)
    return math.inf if crossing is None else crossing[1]


def spent(rows: Rows, seed: int) -> dict[str, float]:
    """Tokens of a seed until LEVEL times the end of its run without replay, by sampler; infinite: never."""
    curves = {row["sampler"]: row["curve"] for row in rows if row["seed"] == seed}
    if "fifo" not in curves:
        return {}
    target = LEVEL * curves["fifo"][-1][2]
    return {name: tokens_until(curve, target) for name, curve in curves.items()}


def saved(rows: Rows) -> dict[int, float]:
    """Tokens without replay by tokens with it, by seed; 0 where the run with it never reaches the target."""
    found = {seed: spent(rows, seed) for seed in sorted({row["seed"] for row in rows})}
    return {
        seed: both["fifo"] / both["replay"] for seed, both in found.items() if both.keys() == SAMPLERS.keys()
    }


def bars(rows: Rows) -> list[Bar]:
    """The least saving of any seed, and the least ratio of uses to arrivals beside what was asked."""
    reached = [row["samples_per_insert"] for row in rows if row["sampler"] == "replay"]
    return [
        Bar("tokens_saved_by_replay", min(saved(rows).values(), default=None), 1.5),
        Bar("samples_per_insert_reached", min(reached, default=None), 0.9 * ASKED),
    ]


def table(rows: Rows) -> str:
    """A Markdown table, one line a run."""
    lines = [
        "| sampler | seed | start | end | steps | tokens | tokens to the target | samples per insert |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["sampler"], row["seed"])):
        steps, tokens, end = row["curve"][-1]
        needed = spent(rows, row["seed"]).get(row["sampler"], math.inf)
        cells = (
            f"`{row['sampler']}`",
            str(row["seed"]),
            f"{row['curve'][0][2]:.1%}",
            f"{end:.1%}",
            f"{steps:.0f}",
            f"{tokens:,.0f}",
            f"{needed:,.0f}" if math.isfinite(needed) else "never",
            f"{row['samples_per_insert']:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
