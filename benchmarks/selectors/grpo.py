"""`python -m benchmarks.selectors.grpo [--minutes M] [--only SELECTOR,SEED] [--list]`: a grid of GRPO runs.

Every cell is `rft run` of `recipe.yaml` with another selector and seed, from the same supervised model per
seed; its weights are measured on held-out tasks afterwards. A finished cell is a line in the records; a cell
that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.grid import ENGINES, options, played, seeds_asked_for, versions
from benchmarks.report import Bar, finish
from benchmarks.selectors.cells import POOLS, TARGET, Cell, Scale, play
from benchmarks.selectors.records import FOLDER, Records, bars_of_all
from benchmarks.selectors.savings import best, summary

SELECTORS = ("uniform", "difficulty", "bandit", "hierarchical")
"""The four most telling: no choice, the quickstart's, categories alone, categories and tasks together."""
SEEDS = 3


def cells(scale: Scale, engine: str, seeds: int = SEEDS) -> list[Cell]:
    """The grid, seed by seed, so that every seed has its uniform run soon; the plain pool comes last."""
    return [
        Cell(name, seed, pool, engine, scale) for pool in POOLS for seed in range(seeds) for name in SELECTORS
    ]


def report(path: Path) -> tuple[Sequence[Mapping[str, Any]], list[Bar]]:
    """The records of the present code at full scale, and a bar for each pool read from its own."""
    records, wanted = Records(path), cells(Scale(), "vllm")
    rows, missing = records.found(wanted), records.missing(wanted)
    bars: list[Bar] = []
    for pool in POOLS:
        bars += bars_of_all([grpo_bar(rows, pool)], [cell for cell in missing if cell.pool == pool])
    return rows, bars


def grpo_bar(rows: Sequence[Mapping[str, Any]], pool: str) -> Bar:
    """The best selector's ratio to uniform on a pool, from records of real runs."""
    _, value = best(rows, [name for name in SELECTORS if name != "uniform"], [{"pool": pool}])
    return Bar(f"best_vs_uniform_rollouts_grpo_{pool}", value, 1.3)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The tables for people, in Markdown."""
    columns = {
        "rollouts": "{:,.0f}".format,
        "steps": "{:.0f}".format,
        "accuracy": "{:.3f}".format,
        "seconds": "{:.0f}".format,
    }
    for pool in POOLS:
        print(f"\nGRPO, {pool} pool, held-out target {TARGET}\n")
        print(summary(rows, SELECTORS, columns, pool=pool))


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = options("benchmarks.selectors.grpo", __doc__, FOLDER / "grpo.jsonl", minutes=90.0)
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    arguments = parser.parse_args(argv)
    scale = Scale.tiny() if arguments.quick else Scale()
    wanted = cells(scale, arguments.engine, seeds_asked_for(arguments.only, SEEDS))
    done = played(arguments, wanted, play)
    if done is None:
        return
    rows, bars = report(arguments.records)
    show(rows)
    finish(bars + done.bars, versions(), {"cells": len(rows), "failed": done.failed})


if __name__ == "__main__":
    main()
