"""`python -m benchmarks.learning [--minutes M] [--only ALGORITHM,SEED] [--root DIR] [--list] [--quick]`.

Trains every online algorithm on the quickstart's tasks for a fixed budget and prints held-out accuracy before
and after. A finished cell is a line in the records; a cell that was stopped goes on from its last checkpoint;
one that fails is told and the next has its turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.learning.cells import Cell, Scale, play
from benchmarks.learning.verdicts import bar, table
from benchmarks.report import finish
from benchmarks.selectors.records import Records, newest
from rft_data import __version__
from rft_data.recipe.algorithms import ALGORITHMS

RECORDS = Path(__file__).parent / "records" / "learning.jsonl"
SEEDS = 2
_SECONDS = 300.0
"""A cell takes this long where no record says better; so does what prepares it."""


def cells(scale: Scale, engine: str, seeds: int = SEEDS) -> list[Cell]:
    """The grid, seed by seed."""
    return [Cell(name, seed, engine, scale) for seed in range(seeds) for name in ALGORITHMS]


def missing(wanted: Sequence[Cell], records: Records) -> list[Cell]:
    """The cells that no record of the present recipe and code covers."""
    done = {(row["recipe_hash"], row["code_hash"]) for row in records.rows()}
    return [cell for cell in wanted if (cell.recipe_hash, cell.code_hash) not in done]


def run_cells(wanted: Sequence[Cell], records: Records, root: Path, minutes: float) -> list[str]:
    """Run what is missing; a cell is started only if one as slow as the slowest so far would end in time.

    Returns: names of the cells that failed.
    """
    ends, failed = time.monotonic() + 60 * minutes, []
    for cell in missing(wanted, records):
        took = [
            row["seconds"] + row["prepare_s"] for row in records.rows() if row["scale"] == cell.scale.name
        ]
        slowest = max(took, default=_SECONDS)
        if time.monotonic() + slowest > ends:
            print(f"{cell.name}: not started, it may take {slowest:.0f} s")
            break
        try:
            record = play(cell, root)
        except RuntimeError as err:
            failed.append(cell.name)
            print(f"{cell.name}: FAILED\n{err}", file=sys.stderr, flush=True)
            continue
        records.append(record)
        start, end, seconds = (record[key] for key in ("start", "end", "seconds"))
        print(f"{cell.name}: {start:.1%} -> {end:.1%} in {seconds:.0f} s", flush=True)
    return failed


def read(path: Path, scale: str) -> list[Mapping[str, Any]]:
    """The newest record of every cell."""
    rows = [row for row in Records(path).rows() if row["scale"] == scale]
    return newest(rows, ["algorithm", "seed"])


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--root", type=Path, help="keep the runs here; needed to resume a stopped cell")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--minutes", type=float, default=180.0, help="start no cell that cannot end by then")
    parser.add_argument("--only", default="", help="ALGORITHM[,SEED]: only these cells")
    parser.add_argument("--quick", action="store_true", help="tiny runs, recorded apart: do they run at all")
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
        for cell in missing(wanted, records):
            print(f"{cell.algorithm},{cell.seed}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        failed = run_cells(wanted, records, arguments.root or Path(temporary), arguments.minutes)
    rows = read(arguments.records, scale.name)
    print(table(rows, list(ALGORITHMS)))
    versions = {"rft-data": __version__, **{name: metadata.version(name) for name in ("trl", "torch")}}
    finish([bar(rows, list(ALGORITHMS))], versions, {"cells": len(rows), "failed": failed})


if __name__ == "__main__":
    main()
