"""`python -m benchmarks.selectors [draws] [--tasks N] [--rounds R] [--selectors NAME ...]`."""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.report import finish
from benchmarks.selectors import draws
from rft_data import __version__


def main() -> None:
    """Measure what draws cost and print the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selectors", description=draws.__doc__)
    parser.add_argument("part", nargs="?", choices=["draws"], default="draws")
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=draws.ROUNDS)
    parser.add_argument(
        "--selectors", nargs="+", choices=list(draws.CONTENDERS), default=list(draws.CONTENDERS)
    )
    args = parser.parse_args()
    bars, figures = draws.measure(args.tasks, args.rounds, args.selectors)
    finish(bars, {"rft-data": __version__, "numpy": np.__version__}, figures)


if __name__ == "__main__":
    main()
