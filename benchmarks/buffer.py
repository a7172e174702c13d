"""The buffer's write and read paths beside a bare LanceDB table, SQLite queues, an Arrow file, Trinity-RFT.

`python -m benchmarks.buffer [--quick] [--parts append,lease,trinity,growth]`. Rows have 1,000 tokens with
logprobs and text unless said otherwise. Appends and leases are medians of several runs; what needs a fresh
memory has a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import trinity_peer
from benchmarks.growth import commit_drift, memory_of_owner, random_leases
from benchmarks.peers import ArrowFile, as_objects, sqlite_pickle, sqlite_raw
from benchmarks.report import Bar, finish
from benchmarks.rows import GROUP, RowMaker, group_result
from rft_data.buffer import Buffer
from rft_data.core.schema import INCOMING
from rft_data.sampler.ledger import Ledger

PARTS = ("append", "lease", "trinity", "growth")
RUNS = 3
TOKENS = 1000
CLIENTS = 4
WINDOW = 64
"""Appends a client sends before it waits for the oldest."""


def seconds(act: Callable[[], object]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def through_owner(buffer: Buffer, tables: Sequence[pa.Table]) -> None:
    """Append every table from CLIENTS threads and wait until all are acknowledged."""

    def client(mine: Sequence[pa.Table]) -> None:
        waiting = []
        for table in mine:
            waiting.append(buffer.submit(table))
            if len(waiting) >= WINDOW:
                waiting.pop(0).result()
        for future in waiting:
            future.result()

    threads = [threading.Thread(target=client, args=(tables[i::CLIENTS],)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def append_rates(folder: Path, per_call: int, rows: int) -> dict[str, float]:
    """Rows per second with calls of `per_call` rows, each acknowledged as durable."""
    import lancedb

    maker = RowMaker(TOKENS)
    tables = [maker.table(per_call) for _ in range(rows // per_call)]
    objects = [as_objects(table) for table in tables]
    rates = {}
    with Buffer(folder / "buffer") as buffer:
        buffer.append(maker.table(GROUP))  # opens tables, starts threads
        rates["buffer"] = rows / seconds(lambda: through_owner(buffer, tables))
        stored = buffer.read("experiences")
    for name, peer in (("sqlite+pickle", sqlite_pickle), ("sqlite raw", sqlite_raw)):
        queue = peer(folder / f"{name}.db")
        rates[name] = rows / seconds(lambda q=queue: [q.append(part) for part in objects])
    floor = ArrowFile(folder / "floor.arrow", INCOMING)
    rates["arrow file + fsync"] = rows / seconds(lambda: [floor.append(table) for table in tables])
    options = {"new_table_enable_stable_row_ids": "true", "new_table_data_storage_version": "2.2"}
    bare = lancedb.connect(str(folder / "bare"), storage_options=options).create_table(
        "t", schema=stored.schema
    )
    parts = [stored.slice(i, 512).combine_chunks() for i in range(0, stored.num_rows - 511, 512)]
    rates["bare table.add of 512"] = 512 * len(parts) / seconds(lambda: [bare.add(part) for part in parts])
    return rates


def fifo_rates(folder: Path, groups: int, leases: int) -> dict[str, float]:
    """Rows per second of leases of `groups` groups of eight from the newest rows, ledger included."""
    maker = RowMaker(TOKENS)
    table = maker.table(groups * GROUP * leases)
    rates = {}
    with Buffer(folder / "fifo") as buffer:
        buffer.append(table)
        ledger = Ledger(buffer, "run", 0)
        results = [group_result(number) for number in range(groups * leases)]
        ledger.attach("trainer")

        def lease(step: int) -> None:
            granted = ledger.grant("trainer", step, 1, results[step * groups : (step + 1) * groups])
            assert buffer._experiences.take(granted.seqs, trained_only=True).num_rows == groups * GROUP  # noqa: S101

        times = [seconds(lambda s=step: lease(s)) for step in range(leases)]
        rates["buffer"] = groups * GROUP / statistics.median(times)
    objects = as_objects(table)
    for name, peer in (("sqlite+pickle", sqlite_pickle), ("sqlite raw", sqlite_raw)):
        queue = peer(folder / f"fifo-{name}.db")
        queue.append(objects)
        times = [seconds(lambda q=queue: q.lease(groups * GROUP)) for _ in range(leases)]
        rates[name] = groups * GROUP / statistics.median(times)
    return rates


def median_figures(runs: int, measure: Callable[[Path], dict[str, float]]) -> dict[str, float]:
    """Each figure's median over runs in fresh folders."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            found.append(measure(Path(name)))
    return {key: statistics.median(run[key] for run in found) for key in found[0]}


def shown(title: str, figures: dict[str, Any]) -> None:
    """One line of the table."""
    print(f"{title}: " + ", ".join(f"{key} {value:,.4g}" for key, value in figures.items()), flush=True)


def throughput(parts: Collection[str], *, quick: bool) -> tuple[list[Bar], dict[str, Any]]:
    """Appends and first-in-first-out leases beside the peers."""
    runs = 1 if quick else RUNS
    rows = 512 if quick else 8192
    bars: list[Bar] = []
    appends: dict[int, dict[str, float]] = {}
    fifo: dict[str, float] = {}
    if "append" in parts:
        appends = {n: median_figures(runs, lambda f, n=n: append_rates(f, n, rows)) for n in (8, 64, 512)}
        bars += append_bars(appends)
    if "lease" in parts:
        fifo = median_figures(runs, lambda f: fifo_rates(f, 64, 2 if quick else 8))
        shown("lease of 64 groups x 8, first in first out, rows/s", fifo)
        bars.append(Bar("lease_fifo_vs_sqlite_pickle", fifo["buffer"] / fifo["sqlite+pickle"], 5.0))
    theirs = trinity_peer.rates(rows=512 if quick else 4096) if "trinity" in parts else {}
    if theirs:
        shown("Trinity-RFT's SQLExperienceStorage, rows/s", theirs)
        bars += trinity_bars(appends, fifo, theirs)
    return bars, {"append": appends, "fifo": fifo, "trinity": theirs}


def append_bars(appends: Mapping[int, Mapping[str, float]]) -> list[Bar]:
    """Appends beside SQLite and a bare table."""
    for per_call, rates in appends.items():
        shown(f"append, {per_call} rows a call, rows/s", rates)
    small, large = appends[8], appends[512]
    return [
        Bar("append_8row_vs_sqlite_pickle", small["buffer"] / small["sqlite+pickle"], 5.0),
        Bar("append_512row_vs_sqlite_pickle", large["buffer"] / large["sqlite+pickle"], 3.0),
        Bar("append_vs_bare_add512", small["buffer"] / small["bare table.add of 512"], 0.6),
    ]


def trinity_bars(
    appends: Mapping[int, Mapping[str, float]], fifo: Mapping[str, float], theirs: Mapping[str, float]
) -> list[Bar]:
    """What was measured, beside Trinity-RFT's storage."""
    bars = [
        Bar(f"append_{n}row_vs_trinity", rates["buffer"] / theirs[f"write_{n}"], 25.0)
        for n, rates in appends.items()
        if n < 512
    ]
    if fifo:
        bars.append(Bar("lease_fifo_vs_trinity", fifo["buffer"] / theirs["read_512"], 20.0))
    return bars


def growth(*, quick: bool) -> tuple[list[Bar], dict[str, Any]]:
    """What a large and long-lived buffer costs: leases, latency, memory, restart, bytes."""
    leases = {n: random_leases(n) for n in ((1_000, 4_000) if quick else (10_000, 100_000, 1_000_000))}
    for rows, figures in leases.items():
        shown(f"random lease of 64 groups x 8 at {rows:,} rows of 50 tokens", figures)
    drift = commit_drift(200 if quick else 10_000)
    shown("8-row appends, one at a time", drift)
    memory = memory_of_owner(1_000 if quick else 100_000)
    shown("owner, 1k-token rows", memory)
    smallest, largest = min(leases), max(leases)
    bars = [
        Bar(
            "random_lease_p50_1e6_vs_1e4",
            leases[largest]["p50_ms"] / leases[smallest]["p50_ms"],
            3.0,
            ceiling=True,
        ),
        Bar("append_p95_drift_1e4_commits", drift["p95_last_ms"] / drift["p95_first_ms"], 1.5, ceiling=True),
        Bar("rss_drift_1e4_commits", drift["rss_last_mb"] / drift["rss_first_mb"], 1.25, ceiling=True),
        Bar("owner_peak_rss_mb_1e5_rows", memory["peak_rss_mb"], 600.0, ceiling=True),
    ]
    return bars, {"random_lease": leases, "drift": drift, "memory": memory}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run with few rows")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)} (all)")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    bars, figures = throughput(parts, quick=arguments.quick)
    if "growth" in parts:
        more, sizes = growth(quick=arguments.quick)
        bars, figures = bars + more, {**figures, **sizes}
    versions = {name: metadata.version(name) for name in ("lancedb", "pylance", "pyarrow")}
    finish(bars, versions, figures)


if __name__ == "__main__":
    main()
