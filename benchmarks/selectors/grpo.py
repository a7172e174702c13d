"""`python -m benchmarks.selectors.grpo [--minutes M] [--only SELECTOR,SEED] [--list]`: a grid of GRPO runs.

Every cell is `rft run` of `recipe.yaml` with another selector and seed, from the same supervised model per
seed; its weights are measured on held-out tasks afterwards. A finished cell is a line in the records; a cell
that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.report import Bar, finish
from benchmarks.selectors.cells import POOLS, TARGET, Cell, Scale, play
from benchmarks.selectors.records import FOLDER, Records, bars_of_all, repeat, repeated_bar
from benchmarks.selectors.savings import best, summary

SELECTORS = ("uniform", "difficulty", "bandit", "hierarchical")
"""The four most telling: no choice, the quickstart's, categories alone, categories and tasks together."""
SEEDS = 3
_SECONDS = 420.0
"""A cell takes this long where no record says better."""


def cells(scale: Scale, engine: str, seeds: int = SEEDS) -> list[Cell]:
    """The grid, seed by seed, so that every seed has its uniform run soon; the plain pool comes last."""
    return [
        Cell(name, seed, pool, engine, scale) for pool in POOLS for seed in range(seeds) for name in SELECTORS
    ]


def run_cells(wanted: Sequence[Cell], records: Records, root: Path, minutes: float) -> None:
    """Run what is missing; a cell is started only if one as slow as the slowest so far would end in time."""
    ends = time.monotonic() + 60 * minutes
    for cell in records.missing(wanted):
        slowest = max(
            (row["seconds"] for row in records.rows() if row["scale"] == cell.scale.name), default=_SECONDS
        )
        if time.monotonic() + slowest > ends:
            print(f"{cell.name}: not started, it may take {slowest:.0f} s")
            return
        record = play(cell, root)
        records.append(record)
        print(f"{cell.name}: {record['rollouts']:.0f} rollouts, reached: {record['reached']}", flush=True)


def report(path: Path) -> tuple[Sequence[Mapping[str, Any]], list[Bar]]:
    """The records of the present code at full scale, and the bar read from those of the mixed pool."""
    records, wanted = Records(path), cells(Scale(), "vllm")
    rows = records.found(wanted)
    return rows, bars_of_all(
        grpo_bars(rows), records.missing([cell for cell in wanted if cell.pool == "mixed"])
    )


def grpo_bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """The bar of the real runs, from records: the best selector's ratio to uniform on the mixed pool."""
    _, value = best(rows, [name for name in SELECTORS if name != "uniform"], [{"pool": "mixed"}])
    return [Bar("best_vs_uniform_rollouts_grpo", value, 1.3)]


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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selectors.grpo", description=__doc__)
    parser.add_argument("--records", type=Path, default=FOLDER / "grpo.jsonl")
    parser.add_argument("--root", type=Path, help="keep the runs here; needed to resume a stopped cell")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--minutes", type=float, default=90.0, help="start no cell that cannot end by then")
    parser.add_argument("--only", default="", help="SELECTOR[,SEED[,POOL]]: only these cells")
    parser.add_argument("--quick", action="store_true", help="tiny runs, recorded apart: do they run at all")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="run N random recorded cells again"
    )
    parser.add_argument("--list", action="store_true", help="print the cells that are missing and end")
    arguments = parser.parse_args(argv)
    scale = Scale.tiny() if arguments.quick else Scale()
    name, seed, pool = (*arguments.only.split(","), "", "")[:3]
    wanted = [
        cell
        for cell in cells(scale, arguments.engine, max(SEEDS, int(seed or 0) + 1))
        if name in ("", cell.selector) and seed in ("", str(cell.seed)) and pool in ("", cell.pool)
    ]
    records = Records(arguments.records)
    if arguments.list:
        for cell in records.missing(wanted):
            print(f"{cell.selector},{cell.seed},{cell.pool}")
        return
    rows, bars = report(arguments.records)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.verify:
            differ = repeat(wanted, records, lambda cell: play(cell, Path(temporary)), arguments.verify)
            bars.append(repeated_bar(differ))
        else:
            run_cells(wanted, records, arguments.root or Path(temporary), arguments.minutes)
            rows, bars = report(arguments.records)
    show(rows)
    versions = {name: metadata.version(name) for name in ("rft-data", "trl", "torch")}
    finish(bars, versions, {"cells": len(rows)})


if __name__ == "__main__":
    main()
