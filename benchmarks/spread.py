"""`python -m benchmarks.spread [--quick] [--workers 2] [--address HOST:PORT]`: operators over Ray Data.

A list of operators that take processor time (Data-Juicer's, over long texts), in this process, in one task of
Ray Data at a time and in several; all have warm processes, as a long pass has. The result has to be the same,
row for row. Without an address a cluster of this machine is started.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from importlib import metadata
from statistics import median

import pyarrow as pa

from benchmarks.report import Bar, finish
from ops.runtime.pipeline import OperatorPipeline, Verdicts
from rft_data.core.lookup import need
from rft_data.placement.ray import connect
from rft_data.run.build import prepare_process

OPERATORS = [
    {"character_repetition_filter": {"rep_len": 10, "max_ratio": 0.9}},
    {"word_repetition_filter": {"rep_len": 5, "max_ratio": 0.9}},
]
AT_LEAST = 1.6
"""Bar of both ratios with two workers, on a machine with two quiet cores."""


def texts(rows: int, words: int) -> pa.Table:
    """Texts of random words, the same every time; some repeat themselves, and are dropped."""
    drawn = random.Random(0)  # noqa: S311 - no secret
    known = ["".join(drawn.choices("abcdefghij", k=drawn.randint(2, 9))) for _ in range(4000)]
    made = [" ".join(drawn.choices(known, k=words)) if n % 50 else "again " * words for n in range(rows)]
    return pa.table({"text": made})


def timed(table: pa.Table, spread: int) -> tuple[float, Verdicts]:
    """Seconds of one pass, and what it did."""
    pipeline = OperatorPipeline(OPERATORS, name="task_ops", text_column="text", spread=spread)
    began = time.perf_counter()
    found = pipeline.run_tasks(table)
    seconds = time.perf_counter() - began
    pipeline.close()
    return seconds, found


def same(one: Verdicts, other: Verdicts) -> bool:
    """Whether two passes kept the same rows with the same values, and lost others for the same reasons."""
    losses = [[(r.name, r.dropped, r.quarantined) for r in found.reports] for found in (one, other)]
    return losses[0] == losses[1] and bool(one.table.equals(other.table))


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spread")
    parser.add_argument("--quick", action="store_true", help="small: does it run at all")
    parser.add_argument("--workers", type=int, default=2, help="tasks at a time (default 2)")
    parser.add_argument("--address", help="a running cluster; else one of this machine is started")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    prepare_process()
    rows, words = (256, 50) if arguments.quick else (8000, 400)
    table = texts(rows, words)
    mine = connect(arguments.address)
    seconds: dict[int, list[float]] = {0: [], 1: [], arguments.workers: []}
    equal = True
    try:
        timed(table.slice(0, 64 * arguments.workers), arguments.workers)  # its processes import the operators
        timed(table.slice(0, 64), 0)
        for _ in range(1 if arguments.quick else arguments.rounds):
            passes = {workers: timed(table, workers) for workers in seconds}
            for workers, (took, found) in passes.items():
                seconds[workers].append(took)
                equal = equal and same(passes[0][1], found)
    finally:
        if mine:
            need("ray", "ray", "this benchmark").shutdown()
    for workers, values in seconds.items():
        name = f"{workers} in Ray Data" if workers else "local"
        print(f"{name:<16}{rows} rows of {words} words in {median(values):.2f} s")
    bars = [
        Bar("ray_data_vs_local", ratio(seconds[0], seconds[arguments.workers]), AT_LEAST),
        Bar("ray_data_vs_one_worker", ratio(seconds[1], seconds[arguments.workers]), AT_LEAST),
        Bar("same_rows", float(equal), 1.0),
    ]
    figures = {"seconds": seconds, "rows": rows, "workers": arguments.workers, "load": os.getloadavg()[0]}
    finish(bars, {name: metadata.version(name) for name in ("rft-data", "ray", "py-data-juicer")}, figures)


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median over the rounds of how many times as long a pass took."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


if __name__ == "__main__":
    main()
