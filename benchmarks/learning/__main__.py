"""`python -m benchmarks.learning [--minutes M] [--only ALGORITHM,SEED] [--root DIR] [--list] [--quick]`.

Trains every online algorithm on sums for a fixed budget and prints held-out accuracy before
and after. A finished cell is a line in the records; a cell that was stopped goes on from its last checkpoint;
one that fails is told and the next has its turn.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.grid import run_cells
from benchmarks.learning.cells import Cell, Scale, play
from benchmarks.learning.verdicts import bar, table
from benchmarks.report import Bar, finish
from benchmarks.selectors.records import Records, bars_of_all, repeat, repeated_bar
from rft_data import __version__
from rft_data.recipe.algorithms import ALGORITHMS

RECORDS = Path(__file__).parent / "records" / "learning.jsonl"
SEEDS = 2


def cells(scale: Scale, engine: str, seeds: int = SEEDS) -> list[Cell]:
    """The grid, seed by seed."""
    return [Cell(name, seed, engine, scale) for seed in range(seeds) for name in ALGORITHMS]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--root", type=Path, help="keep the runs here; needed to resume a stopped cell")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--minutes", type=float, default=180.0, help="start no cell that cannot end by then")
    parser.add_argument("--only", default="", help="ALGORITHM[,SEED]: only these cells")
    parser.add_argument("--quick", action="store_true", help="tiny runs, recorded apart: do they run at all")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="run N random recorded cells again"
    )
    parser.add_argument("--list", action="store_true", help="print the cells that are missing and end")
    arguments = parser.parse_args(argv)
    scale = Scale.tiny() if arguments.quick else Scale()
    name, seed = (*arguments.only.split(","), "")[:2]
    if name and name not in ALGORITHMS:
        parser.error(f"there is no algorithm '{name}'; there are {', '.join(ALGORITHMS)}")
    wanted = [
        cell
        for cell in cells(scale, arguments.engine, max(SEEDS, int(seed or 0) + 1))
        if name in ("", cell.algorithm) and seed in ("", str(cell.seed))
    ]
    records = Records(arguments.records)
    if arguments.list:
        for cell in records.missing(wanted):
            print(f"{cell.algorithm},{cell.seed}")
        return
    failed: list[str] = []
    more: list[Bar] = []
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.verify:
            differ = repeat(wanted, records, lambda cell: play(cell, Path(temporary)), arguments.verify)
            more.append(repeated_bar(differ))
        else:
            root = arguments.root or Path(temporary)
            failed = run_cells(wanted, records, lambda cell: play(cell, root), arguments.minutes)
    whole = cells(scale, arguments.engine)
    rows = records.found(whole)
    print(table(rows, list(ALGORITHMS)))
    bars = bars_of_all([bar(rows, list(ALGORITHMS))], records.missing(whole)) + more
    versions = {"rft-data": __version__, **{name: metadata.version(name) for name in ("trl", "torch")}}
    finish(bars, versions, {"cells": len(rows), "failed": failed})


if __name__ == "__main__":
    main()
