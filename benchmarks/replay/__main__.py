"""`python -m benchmarks.replay [--minutes M] [--only SAMPLER,SEED] [--root DIR] [--list] [--quick]`.

Runs the quickstart's RL with and without replay, and compares how many tokens each had generated when it
reached the same held-out accuracy. A finished cell is a line in the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.grid import ENGINES, options, played, versions
from benchmarks.replay.cells import SAMPLERS, Cell, Scale, play
from benchmarks.replay.verdicts import bars, table
from benchmarks.report import finish
from benchmarks.selectors.records import bars_of_all

RECORDS = Path(__file__).parent / "records" / "replay.jsonl"
SEEDS = 3


def cells(scale: Scale, engine: str, seeds: int = SEEDS) -> list[Cell]:
    """The comparison, seed by seed."""
    return [Cell(name, seed, engine, scale) for seed in range(seeds) for name in SAMPLERS]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = options("benchmarks.replay", __doc__, RECORDS, minutes=120.0)
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    arguments = parser.parse_args(argv)
    whole = cells(Scale.tiny() if arguments.quick else Scale(), arguments.engine)
    done = played(arguments, whole, play)
    if done is None:
        return
    rows = done.records.found(whole)
    print(table(rows))
    found = bars_of_all(bars(rows), done.records.missing(whole)) + done.bars
    finish(found, versions(), {"cells": len(rows), "failed": done.failed})


if __name__ == "__main__":
    main()
