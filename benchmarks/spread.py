"""`python -m benchmarks.spread [--quick] [--workers 2] [--address HOST:PORT]`: operators over Ray Data.

A list of operators that take processor time (Data-Juicer's, over long texts), in this process, in one task of
Ray Data at a time and in several; all have warm processes, as a long pass has. The result has to be the same,
row for row. Without an address a cluster of this machine is started. Beside it: as many bare processes, each
with its share of the rows, which is what this machine's processors can give at most. The pass is one of some
20 s: Ray Data (2.60) learns what a cluster has a second after a pass began and runs one task until then, and
0.1 s go by between a task's end and the next one's start.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from importlib import metadata
from multiprocessing.pool import Pool
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
LOCAL, PROCESSES, ONE, SEVERAL = "local", "bare processes", "one task in Ray Data", "tasks in Ray Data"
AT_LEAST = 1.6
"""Bar of two workers against none and against one, where two processors do twice as much as one."""
OF_LIMIT = 0.8
"""Bar against bare processes: the same share of what is possible, where processors share a core or a host."""


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


def passed(table: pa.Table) -> int:
    """One pass in this process; the rows that are left. What a bare process does."""
    return int(timed(table, 0)[1].table.num_rows)


def in_processes(pool: Pool, table: pa.Table, workers: int) -> tuple[float, int]:
    """Seconds of one pass by bare processes with an equal share each, and the rows that are left."""
    size = -(-len(table) // workers)
    shares = [table.slice(start, size).combine_chunks() for start in range(0, len(table), size)]
    began = time.perf_counter()
    rows = sum(pool.map(passed, shares, chunksize=1))
    return time.perf_counter() - began, rows


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
    os.environ.setdefault("RAY_worker_niceness", "0")  # it would give way to all others
    rows, words = (256, 50) if arguments.quick else (32_000, 400)
    table = texts(rows, words)
    mine = connect(arguments.address)
    try:
        with multiprocessing.get_context("spawn").Pool(arguments.workers, prepare_process) as pool:
            seconds, equal = measured(
                table, pool, arguments.workers, 1 if arguments.quick else arguments.rounds
            )
    finally:
        if mine:
            need("ray", "ray", "this benchmark").shutdown()
    for name, values in seconds.items():
        print(f"{name:<22}{rows} rows of {words} words in {median(values):.2f} s")
    limit = ratio(seconds[LOCAL], seconds[PROCESSES])
    print(f"{arguments.workers} bare processes do {limit:.2f} times as much as one here: that is the limit")
    bars = [
        Bar("ray_data_vs_local", ratio(seconds[LOCAL], seconds[SEVERAL]), AT_LEAST),
        Bar("ray_data_vs_one_worker", ratio(seconds[ONE], seconds[SEVERAL]), AT_LEAST),
        Bar("ray_data_vs_bare_processes", ratio(seconds[PROCESSES], seconds[SEVERAL]), OF_LIMIT),
        Bar("same_rows", float(equal), 1.0),
    ]
    figures = {
        "seconds": seconds,
        "rows": rows,
        "workers": arguments.workers,
        "bare_processes_vs_local": limit,
        "load": os.getloadavg()[0],
    }
    finish(bars, {name: metadata.version(name) for name in ("rft-data", "ray", "py-data-juicer")}, figures)


def measured(table: pa.Table, pool: Pool, workers: int, rounds: int) -> tuple[dict[str, list[float]], bool]:
    """Seconds of each way in each round, and whether every way left the same rows."""
    timed(table.slice(0, 64 * workers), workers)  # its processes import the operators
    timed(table.slice(0, 64), 0)
    in_processes(pool, table.slice(0, 64 * workers), workers)
    seconds: dict[str, list[float]] = {name: [] for name in (LOCAL, PROCESSES, ONE, SEVERAL)}
    equal = True
    for _ in range(rounds):
        took, wanted = timed(table, 0)
        seconds[LOCAL].append(took)
        took, rows = in_processes(pool, table, workers)
        seconds[PROCESSES].append(took)
        equal = equal and rows == len(wanted.table)
        for name, tasks in ((SEVERAL, workers), (ONE, 1)):
            took, found = timed(table, tasks)
            seconds[name].append(took)
            equal = equal and same(wanted, found)
    return seconds, equal


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median over the rounds of how many times as long a pass took."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


if __name__ == "__main__":
    main()
