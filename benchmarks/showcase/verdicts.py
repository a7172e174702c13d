"""From records to the table and the bars: RL's lead over supervised runs, groups that choosing saves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.report import Bar

Rows = Sequence[Mapping[str, Any]]


def lead_bar(rows: Rows, seeds: Sequence[int], supervised: Collection[str]) -> Bar:
    """Held-out points between RL and the best supervised run, or its own start: the least of the seeds.

    Its value is None where a seed lacks one of the runs.
    """
    return Bar("rl_minus_best_sft_points", _least_lead(rows, seeds, supervised), 15.0)


def _least_lead(rows: Rows, seeds: Sequence[int], supervised: Collection[str]) -> float | None:
    leads = []
    for seed in seeds:
        mine = {row["contender"]: row for row in rows if row["seed"] == seed}
        if not {"rl", *supervised} <= mine.keys():
            return None
        best = max(mine["rl"]["start"], *(mine[name]["end"] for name in supervised))
        leads.append(100 * float(mine["rl"]["end"] - best))
    return min(leads)


def groups_bar(rows: Rows, seeds: Sequence[int]) -> Bar:
    """Groups sampled with random tasks over those with chosen ones, in as many steps: least of all seeds.

    Its value is None where a seed lacks one of the runs.
    """
    groups = {(row["contender"], row["seed"]): float(row["groups"]) for row in rows}
    wanted = [(name, seed) for name in ("rl", "random") for seed in seeds]
    known = groups.keys() >= set(wanted)
    least = min(groups["random", seed] / groups["rl", seed] for seed in seeds) if known else None
    return Bar("random_over_rl_groups", least, 1.2)


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
