"""`python -m benchmarks.learning [--minutes M] [--only ALGORITHM,SEED] [--root DIR] [--list] [--quick]`.

Trains every online algorithm on sums for a fixed budget and prints held-out accuracy before
and after. A finished cell is a line in the records; a cell that was stopped goes on from its last checkpoint;
one that fails is told and the next has its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.grid import ENGINES, options, played, seeds_asked_for, versions
from benchmarks.learning.cells import Cell, Scale, play
from benchmarks.learning.verdicts import bar, table
from benchmarks.report import finish
from benchmarks.selectors.records import bars_of_all
from rft_data.recipe.algorithms import ALGORITHMS

RECORDS = Path(__file__).parent / "records" / "learning.jsonl"
SEEDS = 2


def cells(scale: Scale, engine: str, seeds: int = SEEDS) -> list[Cell]:
    """The grid, seed by seed."""
    return [Cell(name, seed, engine, scale) for seed in range(seeds) for name in ALGORITHMS]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = options("benchmarks.learning", __doc__, RECORDS)
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    arguments = parser.parse_args(argv)
    scale = Scale.tiny() if arguments.quick else Scale()
    wanted = cells(scale, arguments.engine, seeds_asked_for(arguments.only, SEEDS))
    done = played(arguments, wanted, play)
    if done is None:
        return
    whole = cells(scale, arguments.engine)
    rows = done.records.found(whole)
    print(table(rows, list(ALGORITHMS)))
    bars = bars_of_all([bar(rows, list(ALGORITHMS))], done.records.missing(whole)) + done.bars
    finish(bars, versions(), {"cells": len(rows), "failed": done.failed})


if __name__ == "__main__":
    main()
