"""`python -m benchmarks.showcase [--minutes M] [--only CONTENDER,SEED] [--root DIR] [--list] [--quick]`.

Runs the quickstart, its supervised stage alone for several numbers of epochs, and the quickstart with random
tasks and without the variance filter, for three seeds. A finished cell is a line in the records; one that was
stopped goes on from its last checkpoint where `--root` keeps it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.grid import run_cells
from benchmarks.report import Bar, finish
from benchmarks.selectors.records import Records, bars_of_all, repeat, repeated_bar
from benchmarks.showcase.cells import EPOCHS, SUPERVISED, VARIANTS, WORKED, Cell, Scale, play
from benchmarks.showcase.verdicts import bar, table

RECORDS = Path(__file__).parent / "records" / "showcase.jsonl"
SEEDS = (0, 1, 2)
CONTENDERS = (
    "rl",
    *SUPERVISED,
    *(f"{WORKED}-{epochs}" for epochs in EPOCHS),
    *(name for name in VARIANTS if name != "rl"),
)


def cells(scale: Scale, engine: str) -> list[Cell]:
    """The grid: what the bar is read from, seed by seed, then RL without a part of the data half."""
    order = [(name, seed) for seed in SEEDS for name in CONTENDERS]
    order.sort(key=lambda one: one[0] in VARIANTS and one[0] != "rl")  # stable: seeds stay in order
    return [Cell(name, seed, engine, scale) for name, seed in order]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.showcase", description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--root", type=Path, help="keep the runs here; needed to resume a stopped cell")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--minutes", type=float, default=180.0, help="start no cell that cannot end by then")
    parser.add_argument("--only", default="", help="CONTENDER[,SEED]: only these cells")
    parser.add_argument("--quick", action="store_true", help="tiny runs, recorded apart: do they run at all")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="run N random recorded cells again"
    )
    parser.add_argument("--list", action="store_true", help="print the cells that are missing and end")
    arguments = parser.parse_args(argv)
    name, seed = (*arguments.only.split(","), "")[:2]
    if name and name not in CONTENDERS:
        parser.error(f"there is no contender '{name}'; there are {', '.join(CONTENDERS)}")
    whole = cells(Scale.tiny() if arguments.quick else Scale(), arguments.engine)
    wanted = [cell for cell in whole if name in ("", cell.contender) and seed in ("", str(cell.seed))]
    records = Records(arguments.records)
    if arguments.list:
        for cell in records.missing(wanted):
            print(f"{cell.contender},{cell.seed}")
        return
    failed: list[str] = []
    more: list[Bar] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.root or Path(temporary)
        if arguments.verify:
            differ = repeat(wanted, records, lambda cell: play(cell, Path(temporary)), arguments.verify)
            more.append(repeated_bar(differ))
        else:
            failed = run_cells(wanted, records, lambda cell: play(cell, root), arguments.minutes)
    rows = records.found(whole)
    print(table(rows, CONTENDERS))
    read_from = [cell for cell in whole if cell.contender == "rl" or cell.contender not in VARIANTS]
    bars = bars_of_all([bar(rows, SEEDS)], records.missing(read_from)) + more
    versions = {name: metadata.version(name) for name in ("rft-data", "trl", "torch")}
    finish(bars, versions, {"cells": len(rows), "failed": failed})


if __name__ == "__main__":
    main()
