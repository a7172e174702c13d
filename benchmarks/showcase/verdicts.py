"""From records to the table and the bar: by how much RL beats the best supervised run. It runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import Bar

Rows = Sequence[Mapping[str, Any]]


def gain_points(rows: Rows, seed: int) -> float:
    """Held-out points between RL and the best of the seed's supervised runs, whatever it was trained on."""
    ends = {row["contender"]: row["end"] for row in rows if row["seed"] == seed}
    best = max(end for name, end in ends.items() if name.startswith(("sft-", "worked-")))
    return 100 * float(ends["rl"] - best)


def bar(rows: Rows, seeds: Sequence[int]) -> Bar:
    """The least gain of the seeds; without a value where a seed lacks RL or a supervised run."""
    found = {(row["contender"].partition("-")[0], row["seed"]) for row in rows}
    whole = all({("rl", seed), ("sft", seed)} <= found for seed in seeds)
    value = min(gain_points(rows, seed) for seed in seeds) if whole else None
    return Bar("rl_minus_best_sft_points", value, 15.0)


def table(rows: Rows, contenders: Sequence[str]) -> str:
    """A Markdown table, one line a contender; seeds in order, each with its share of right steps."""
    lines = [
        "| run | held-out accuracy | right steps | groups | seconds | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for name in contenders:
        found = sorted((row for row in rows if row["contender"] == name), key=lambda row: row["seed"])
        cells = [
            ", ".join(f"{row['end']:.1%}" for row in found),
            ", ".join(f"{row['right_steps_end']:.1%}" for row in found),
            ", ".join(str(row["groups"]) for row in found),
            ", ".join(f"{row['seconds']:.0f}" for row in found),
            ", ".join(str(row["seed"]) for row in found),
        ]
        lines.append(f"| `{name}` | {' | '.join(cells if found else ['not measured', '', '', '', ''])} |")
    return "\n".join(lines)
