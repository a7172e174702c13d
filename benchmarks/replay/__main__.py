"""`python -m benchmarks.replay [--minutes M] [--only SAMPLER,SEED] [--root DIR] [--quick] [--verify N]`.

Trains the same policy with and without replay, and compares how many tokens each had generated when it
reached the accuracy that the run without replay ended with. A finished cell is a line in the records.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.replay.cells import SAMPLERS, Cell, Scale, play
from benchmarks.replay.verdicts import bars, table
from benchmarks.report import finish
from benchmarks.selectors.records import Records, bars_of_all, repeat, repeated_bar
from rft_data import __version__

RECORDS = Path(__file__).parent / "records" / "replay.jsonl"
SEEDS = 2


def cells(scale: Scale, seeds: int = SEEDS) -> list[Cell]:
    """The comparison, seed by seed."""
    return [Cell(name, seed, scale) for seed in range(seeds) for name in SAMPLERS]


def run_cells(wanted: Sequence[Cell], records: Records, root: Path, minutes: float) -> list[str]:
    """Run what is missing, and start nothing after `minutes`.

    Returns: names of the cells that failed.
    """
    ends, failed = time.monotonic() + 60 * minutes, []
    for cell in records.missing(wanted):
        if time.monotonic() > ends:
            print(f"{cell.name}: not started, the time is over")
            break
        try:
            records.append(play(cell, root))
        except RuntimeError as err:
            failed.append(cell.name)
            print(f"{cell.name}: FAILED\n{err}", file=sys.stderr, flush=True)
    return failed


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--root", type=Path, help="keep the runs here")
    parser.add_argument("--minutes", type=float, default=120.0, help="start no cell after that")
    parser.add_argument("--only", default="", help="SAMPLER,SEED: only this cell")
    parser.add_argument("--quick", action="store_true", help="tiny runs, recorded apart: do they run at all")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="run N random recorded cells again"
    )
    arguments = parser.parse_args(argv)
    whole = cells(Scale.tiny() if arguments.quick else Scale())
    wanted = [cell for cell in whole if arguments.only in ("", f"{cell.sampler},{cell.seed}")]
    if not wanted:
        parser.error(f"there is no cell '{arguments.only}'; samplers are {', '.join(SAMPLERS)}")
    records, failed, more = Records(arguments.records), [], []
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.root or Path(temporary)
        if arguments.verify:
            differ = repeat(wanted, records, lambda cell: play(cell, Path(temporary)), arguments.verify)
            more.append(repeated_bar(differ))
        else:
            failed = run_cells(wanted, records, root, arguments.minutes)
    rows = records.found(whole)
    print(table(rows))
    versions = {"rft-data": __version__, **{name: metadata.version(name) for name in ("trl", "torch")}}
    found = bars_of_all(bars(rows), records.missing(whole)) + more
    finish(found, versions, {"cells": len(rows), "failed": failed})


if __name__ == "__main__":
    main()
