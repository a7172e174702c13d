"""From records to the table and the bar: by how much RL beats the best supervised run. It runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import Bar

Rows = Sequence[Mapping[str, Any]]


ONE_STAGE = ("sft-", "right-")
"""How the names of runs of one supervised stage begin; the start of `rl` is one, too."""
TWO_STAGES = ("then",)


def gain_points(rows: Rows, seed: int, names: tuple[str, ...] = ONE_STAGE) -> float:
    """Held-out points between RL and the best of the supervised runs so named, and of RL's own start."""
    mine = {row["contender"]: row for row in rows if row["seed"] == seed}
    ends = [row["end"] for name, row in mine.items() if name.startswith(names)]
    return 100 * float(mine["rl"]["end"] - max(mine["rl"]["start"], *ends))


def least_gain(rows: Rows, seeds: Sequence[int], names: tuple[str, ...] = ONE_STAGE) -> float | None:
    """The least gain of the seeds; None where a seed lacks RL or one of the kinds of supervised runs."""
    found = {(row["contender"], row["seed"]) for row in rows}
    for seed in seeds:
        mine = {name for name, of in found if of == seed}
        if "rl" not in mine or not all(any(one.startswith(name) for one in mine) for name in names):
            return None
    return min(gain_points(rows, seed, names) for seed in seeds)


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
