"""From records to the table and the bar: by how much RL beats the best supervised run. It runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import Bar

Rows = Sequence[Mapping[str, Any]]


ONE_STAGE = ("sft-", "right-")
"""How the names of runs of one supervised stage begin; the start of `rl` is one, too."""
TWO_STAGES = ("then",)


def least_gain(rows: Rows, seeds: Sequence[int], names: tuple[str, ...] = ONE_STAGE) -> float | None:
    """Held-out points between RL and the best supervised run, or its own start: the least of the seeds.

    Args: names: how the names of the supervised runs begin.
    Returns: None where a seed lacks RL, or supervised runs of one of the names.
    """
    gains = []
    for seed in seeds:
        mine = {row["contender"]: row for row in rows if row["seed"] == seed}
        ends = [[row["end"] for run, row in mine.items() if run.startswith(name)] for name in names]
        if "rl" not in mine or not all(ends):
            return None
        gains.append(100 * float(mine["rl"]["end"] - max(mine["rl"]["start"], *map(max, ends))))
    return min(gains)


def bar(rows: Rows, seeds: Sequence[int]) -> Bar:
    """RL's lead over the best run of one supervised stage."""
    return Bar("rl_minus_best_sft_points", least_gain(rows, seeds), 15.0)


def table(rows: Rows, contenders: Sequence[str]) -> str:
    """A Markdown table, one line a contender; seeds in order, each with its share of right steps."""
    lines = [
        "| run | after its first SFT stage | held-out accuracy | right steps | groups | seconds | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in contenders:
        found = sorted((row for row in rows if row["contender"] == name), key=lambda row: row["seed"])
        cells = [
            ", ".join(f"{row['start']:.1%}" for row in found),
            ", ".join(f"{row['end']:.1%}" for row in found),
            ", ".join(f"{row['right_steps_end']:.1%}" for row in found),
            ", ".join(str(row["groups"]) for row in found),
            ", ".join(f"{row['seconds']:.0f}" for row in found),
            ", ".join(str(row["seed"]) for row in found),
        ]
        lines.append(f"| `{name}` | {' | '.join(cells if found else ['not measured', '', '', '', '', ''])} |")
    return "\n".join(lines)
