"""From records to the table and the bars: tokens until an accuracy, with replay and without.

It runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.replay.cells import SAMPLERS
from benchmarks.report import Bar

Rows = Sequence[Mapping[str, Any]]
ASKED: float = SAMPLERS["replay"]["samples_per_insert"]


def tokens_until(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Tokens when the accuracy first is `target`, on the line between two evaluations; None: never."""
    if curve[0][2] >= target:
        return curve[0][1]
    for (_, tokens, low), (_, more, high) in pairwise(curve):
        if high >= target:
            return tokens + (target - low) / (high - low) * (more - tokens)
    return None


def saved(rows: Rows, seed: int) -> float | None:
    """Tokens without replay by tokens with it, until both are as good as the run without it at its end.

    None without both records. A run with replay that is never as good has saved nothing: 0.
    """
    found = {row["sampler"]: row for row in rows if row["seed"] == seed}
    if set(found) != set(SAMPLERS):
        return None
    plain, replay = (found[name]["curve"] for name in ("fifo", "replay"))
    target = plain[-1][2]
    without, with_it = tokens_until(plain, target), tokens_until(replay, target)
    return 0.0 if not with_it or without is None else without / with_it


def bars(rows: Rows) -> list[Bar]:
    """The least saving of any seed, and the least ratio of uses to arrivals beside what was asked."""
    ratios = [value for seed in _seeds(rows) if (value := saved(rows, seed)) is not None]
    reached = [row["samples_per_insert"] for row in rows if row["sampler"] == "replay"]
    return [
        Bar("tokens_saved_by_replay", min(ratios, default=None), 1.5),
        Bar("samples_per_insert_reached", min(reached, default=None), 0.9 * ASKED),
    ]


def table(rows: Rows) -> str:
    """A Markdown table, one line a run, seeds in order."""
    lines = [
        "| sampler | seed | start | end | steps | tokens | to fifo's end | samples per insert (asked) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for seed in _seeds(rows):
        found = {row["sampler"]: row for row in rows if row["seed"] == seed}
        target = found["fifo"]["curve"][-1][2] if "fifo" in found else None
        for name, row in sorted(found.items()):
            needed = None if target is None else tokens_until(row["curve"], target)
            start, (steps, tokens, end) = row["curve"][0][2], row["curve"][-1]
            asked = SAMPLERS[name].get("samples_per_insert", 1)
            cells = (
                f"`{name}`",
                str(seed),
                f"{start:.1%}",
                f"{end:.1%}",
                f"{steps:.0f}",
                f"{tokens:,.0f}",
                "never" if needed is None else f"{needed:,.0f}",
                f"{row['samples_per_insert']:.2f} ({asked:g})",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seeds(rows: Rows) -> list[int]:
    return sorted({row["seed"] for row in rows})
