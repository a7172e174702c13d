"""`python -m benchmarks.selectors [--tasks N] [--rounds R] [--selectors NAME ...]`.

What draws cost, measured now, and whether choosing tasks helps, recomputed from the records of
`benchmarks.selectors.study` and `.grpo`.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.report import finish
from benchmarks.selectors import draws, grpo, study
from benchmarks.selectors.records import FOLDER
from rft_data import __version__


def main() -> None:
    """Measure, read the records, and print the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selectors", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=draws.ROUNDS)
    parser.add_argument(
        "--selectors", nargs="+", choices=list(draws.CONTENDERS), default=list(draws.CONTENDERS)
    )
    args = parser.parse_args()
    bars, figures = draws.measure(args.tasks, args.rounds, args.selectors)
    bars += study.report(FOLDER / "simulator.jsonl")[1] + grpo.report(FOLDER / "grpo.jsonl")[1]
    finish(bars, {"rft-data": __version__, "numpy": np.__version__}, figures)


if __name__ == "__main__":
    main()
