"""The buffer's write and read paths beside a bare LanceDB table, SQLite queues, an Arrow file, Trinity-RFT.

`python -m benchmarks.buffer [--quick] [--parts append,lease,trinity,growth]`. Rows have 1,000 tokens with
logprobs and text unless said otherwise. Appends and leases are medians of several runs; what needs a fresh
memory has a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import trinity_peer
from benchmarks.floors import append_floors, lease_floors, seconds
from benchmarks.growth import commit_drift, memory_of_owner, random_leases
from benchmarks.peers import sqlite_pickle, sqlite_raw
from benchmarks.report import Bar, finish
from benchmarks.rows import GROUP, RowMaker, arrays_of_rows, as_objects, group_result
from rft_data.buffer import Buffer
from rft_data.buffer.durability import Durability
from rft_data.sampler.ledger import Ledger

PARTS = ("append", "lease", "trinity", "growth")
RUNS = 3
TOKENS = 1000
CLIENTS = 4
DURABILITIES: tuple[Durability, ...] = ("process", "power")
TERMS = ("hot", "reopened")
FORMS = ("encoded", "arrays")
WINDOW = 64
"""Appends a client sends before it waits for the oldest."""


def from_clients(send: Callable[[Any], Future[Any] | None], parts: Sequence[Any]) -> None:
    """Send every part from CLIENTS threads and wait until all are acknowledged."""

    def client(mine: Sequence[Any]) -> None:
        waiting: deque[Future[Any]] = deque()
        for part in mine:
            if (future := send(part)) is not None:
                waiting.append(future)
            if len(waiting) >= WINDOW:
                waiting.popleft().result()
        for future in waiting:
            future.result()

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, (parts[i::CLIENTS] for i in range(CLIENTS))))


def cost(send: Callable[[Any], Future[Any] | None], parts: Sequence[Any]) -> dict[str, float]:
    """Rows per second, and CPU microseconds a row of all threads."""
    rows, cpu = sum(map(len, parts)), time.process_time()
    wall = seconds(lambda: from_clients(send, parts))
    return {"rows_per_s": rows / wall, "cpu_us": (time.process_time() - cpu) / rows * 1e6}


def append_costs(folder: Path, per_call: int, rows: int) -> dict[str, float]:
    """Appends with calls of `per_call` rows, at equal terms: `FIGURE, DURABILITY, FORM, SYSTEM`.

    Durability: `process` (no fsync) and `power` (fsync before each acknowledgement). Form: `encoded` (Arrow
    tables here, tuples of values for SQLite) and `objects` (`Experience` with NumPy arrays).
    """
    maker = RowMaker(TOKENS)
    tables = [maker.table(per_call) for _ in range(rows // per_call)]
    objects = [as_objects(table) for table in tables]
    figures: dict[str, float] = {}

    def note(*name: str, found: Mapping[str, float]) -> None:
        figures.update({", ".join((figure, *name)): value for figure, value in found.items()})

    for durability in DURABILITIES:
        for form, parts in (("encoded", tables), ("objects", objects)):
            with Buffer(folder / f"{durability}-{form}", durability=durability) as buffer:
                buffer.append(maker.table(GROUP))  # opens tables, starts threads
                note(durability, form, "buffer", found=cost(buffer.submit, parts))
        for system, peer in (("sqlite raw", sqlite_raw), ("sqlite pickle", sqlite_pickle)):
            for form in ("encoded", "objects"):
                queue = peer(folder / f"{durability}-{form}-{system}.db", fsync=durability == "power")
                if form == "objects":
                    note(durability, form, system, found=cost(queue.append, objects))
                else:
                    note(
                        durability, form, system, found=cost(queue.insert, list(map(queue.encoded, objects)))
                    )
                queue.close()
    return figures | append_floors(folder, tables)


def lease_costs(folder: Path, groups: int, leases: int) -> dict[str, float]:
    """Rows per second of leases of `groups` groups of eight, ledger included: `TERM, FORM, SYSTEM`.

    Term: `hot`, of the newest rows, and `reopened`, by a process that has just opened the store. Form:
    `encoded` (an Arrow table; tuples of values, or rows that are still pickled) and `arrays` (each row's
    lists as NumPy arrays; unpickled rows). All but pickled rows have the columns that a step depends on.
    """
    maker = RowMaker(TOKENS)
    table = maker.table(groups * GROUP * leases * len(TERMS) * len(FORMS))
    results = [group_result(number) for number in range(table.num_rows // GROUP)]
    rates: dict[str, float] = {}

    def measured(name: str, lease: Callable[[int], object], first: int) -> int:
        times = [seconds(partial(lease, step)) for step in range(first, first + leases)]
        rates[name] = groups * GROUP / statistics.median(times)
        return first + leases

    step = 0
    for term in TERMS:
        with Buffer(folder / "buffer") as buffer:
            if term == "hot":
                buffer.append(table)
            ledger = Ledger(buffer, "run", step)
            ledger.attach("trainer")

            def lease(step: int, buffer: Buffer = buffer, ledger: Ledger = ledger) -> pa.Table:
                granted = ledger.grant("trainer", step, 1, results[step * groups : (step + 1) * groups])
                return buffer._experiences.take(granted.seqs, trained_only=True)

            step = measured(f"{term}, encoded, buffer", lease, step)
            step = measured(f"{term}, arrays, buffer", lambda n, act=lease: arrays_of_rows(act(n)), step)
    objects = as_objects(table)
    for system, peer in (("sqlite raw", sqlite_raw), ("sqlite pickle", sqlite_pickle)):
        for term in TERMS:
            queue = peer(folder / f"{system}.db", fsync=False)
            if term == "hot":
                queue.append(objects)
            for form in FORMS:
                take = partial(queue.lease, groups * GROUP, decode=form == "arrays")
                measured(f"{term}, {form}, {system}", lambda _, act=take: act(), 0)
            queue.close()
    return rates | lease_floors(folder, table.num_rows, groups * GROUP)


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
    leases: dict[str, float] = {}
    if "append" in parts:
        appends = {n: median_figures(runs, lambda f, n=n: append_costs(f, n, rows)) for n in (8, 64, 512)}
        for per_call, figures in appends.items():
            for name, value in figures.items():
                print(f"append, {per_call} rows a call: {name:<44}{value:>12,.0f}", flush=True)
        bars += append_bars(appends[8])
    if "lease" in parts:
        leases = median_figures(runs, lambda f: lease_costs(f, 64, 2 if quick else 4))
        for name, value in leases.items():
            print(f"lease of 64 groups x 8, first in first out: {name:<32}{value:>10,.0f} rows/s", flush=True)
        bars += lease_bars(leases)
    theirs = trinity_peer.rates(rows=512 if quick else 4096) if "trinity" in parts else {}
    if theirs:
        shown("Trinity-RFT's SQLExperienceStorage, rows/s", theirs)
        bars += trinity_bars(appends, leases, theirs)
    return bars, {"append": appends, "lease": leases, "trinity": theirs}


def fastest_sqlite(rates: Mapping[str, float], term: str) -> float:
    """Rows per second of the faster of SQLite's two ways, at the same terms."""
    return max(rates[f"{term}, {system}"] for system in ("sqlite raw", "sqlite pickle"))


def append_bars(figures: Mapping[str, float]) -> list[Bar]:
    """Appends of 8 rows a call beside the faster SQLite, the least of the four equal terms, and CPU a row."""
    terms = [
        f"rows_per_s, {durability}, {form}" for durability in DURABILITIES for form in ("encoded", "objects")
    ]
    ratios = [figures[f"{term}, buffer"] / fastest_sqlite(figures, term) for term in terms]
    ours = figures["rows_per_s, process, encoded, buffer"]
    return [
        Bar("append_8row_vs_sqlite", min(ratios), 1.3),
        Bar("append_cpu_us_per_row_8_arrow", figures["cpu_us, process, encoded, buffer"], 80, ceiling=True),
        Bar(
            "append_cpu_us_per_row_8_objects", figures["cpu_us, process, objects, buffer"], 130, ceiling=True
        ),
        Bar("append_vs_bare_add512", ours / figures["bare add of 512"], 0.9),
    ]


def lease_bars(rates: Mapping[str, float]) -> list[Bar]:
    """Leases beside SQLite, the least of both forms; rows that are still pickled cannot be trained on."""
    bars = []
    for term, bound in zip(TERMS, (3.0, 1.0), strict=True):
        encoded = rates[f"{term}, encoded, buffer"] / rates[f"{term}, encoded, sqlite raw"]
        arrays = rates[f"{term}, arrays, buffer"] / fastest_sqlite(rates, f"{term}, arrays")
        bars.append(Bar(f"lease_{term}_vs_sqlite", min(encoded, arrays), bound))
    return bars


def trinity_bars(
    appends: Mapping[int, Mapping[str, float]], leases: Mapping[str, float], theirs: Mapping[str, float]
) -> list[Bar]:
    """What was measured, beside Trinity-RFT's storage, which is given objects and does not fsync."""
    bars = [
        Bar(
            f"append_{n}row_vs_trinity",
            figures["rows_per_s, process, objects, buffer"] / theirs[f"write_{n}"],
            25.0,
        )
        for n, figures in appends.items()
        if n < 512
    ]
    if leases:
        bars.append(Bar("lease_fifo_vs_trinity", leases["hot, arrays, buffer"] / theirs["read_512"], 20.0))
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
    slowdown = leases[max(leases)]["p50_ms"] / leases[min(leases)]["p50_ms"]
    bars = [
        Bar("random_lease_p50_1e6_vs_1e4", slowdown, 3.0, ceiling=True),
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
