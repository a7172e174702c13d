"""`python -m benchmarks.showcase [--minutes M] [--only CONTENDER,SEED] [--root DIR] [--list] [--quick]`.

Runs the quickstart for three seeds; supervised stages alone, on all stored solutions and then on those whose
steps are right, on these alone, and on the final answers of all tasks of the kinds held out; and the
quickstart with random tasks and without the variance filter. A finished cell is a line in the records; one
that was stopped goes on from its last checkpoint where `--root` keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.grid import ENGINES, options, played, versions
from benchmarks.report import finish
from benchmarks.showcase.cells import SUPERVISED, VARIANTS, Cell, Scale, play
from benchmarks.showcase.verdicts import groups_bar, lead_bar, table

RECORDS = Path(__file__).parent / "records" / "showcase.jsonl"
SEEDS = (0, 1, 2)
CONTENDERS = ("rl", *SUPERVISED, *(name for name in VARIANTS if name != "rl"))


def cells(scale: Scale, engine: str) -> list[Cell]:
    """The grid: what RL's lead is read from, seed by seed, then RL without a part of the data half."""
    order = [(name, seed) for seed in SEEDS for name in CONTENDERS]
    order.sort(key=lambda one: one[0] in VARIANTS and one[0] != "rl")  # stable: seeds stay in order
    return [Cell(name, seed, engine, scale) for name, seed in order]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = options("benchmarks.showcase", __doc__, RECORDS)
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    arguments = parser.parse_args(argv)
    whole = cells(Scale.tiny() if arguments.quick else Scale(), arguments.engine)
    done = played(arguments, whole, play)
    if done is None:
        return
    rows = done.records.found(whole)
    print(table(rows, CONTENDERS))
    bars = [lead_bar(rows, SEEDS, SUPERVISED), groups_bar(rows, SEEDS)]
    finish(bars + done.bars, versions(), {"cells": len(rows), "failed": done.failed})


if __name__ == "__main__":
    main()
