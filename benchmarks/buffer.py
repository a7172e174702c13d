"""The buffer's write and read paths beside a bare LanceDB table, SQLite queues, an Arrow file, Trinity-RFT.

`python -m benchmarks.buffer [--quick] [--parts append,lease,trinity,growth]`. Rows have 1,000 tokens with
logprobs and text unless said otherwise. For appends and leases, all systems take turns of short slices; what
needs a fresh memory has a process of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import trinity_peer
from benchmarks.appends import DURABILITIES, FORMS, append_costs
from benchmarks.growth import commit_drift, memory_of_owner, random_leases
from benchmarks.leases import TERMS, lease_costs
from benchmarks.peers import PEERS
from benchmarks.report import Bar, finish

PARTS = ("append", "lease", "trinity", "growth")
ROUNDS = 10
"""Slices that each contender's medians are of."""
SLICE = 4096
"""Rows of one slice of appends."""


def shown(title: str, figures: dict[str, Any]) -> None:
    """One line of the table."""
    print(f"{title}: " + ", ".join(f"{key} {value:,.4g}" for key, value in figures.items()), flush=True)


def throughput(parts: Collection[str], *, quick: bool) -> tuple[list[Bar], dict[str, Any]]:
    """Appends and first-in-first-out leases beside the peers."""
    bars: list[Bar] = []
    appends: dict[int, dict[str, float]] = {}
    leases: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        if "append" in parts:
            for per_call, rounds in ((8, ROUNDS), (64, 3), (512, 3)):
                appends[per_call] = append_costs(
                    Path(name), per_call, 512 if quick else SLICE, 1 if quick else rounds
                )
                listed(f"append, {per_call} rows a call", appends[per_call])
            bars += append_bars(appends[8])
        if "lease" in parts:
            leases = lease_costs(Path(name), 64, 1 if quick else 2 * ROUNDS)
            listed("lease of 64 groups x 8", leases)
            bars += lease_bars(leases)
    theirs = trinity_peer.rates(rows=512 if quick else 4096) if "trinity" in parts else {}
    if theirs:
        shown("Trinity-RFT's SQLExperienceStorage, rows/s", theirs)
        bars += trinity_bars(appends, leases, theirs)
    return bars, {"append": appends, "lease": leases, "trinity": theirs}


def listed(title: str, figures: Mapping[str, float]) -> None:
    """A line for each contender: its rate, CPU, and how many times as fast the buffer is."""
    for key, rate in figures.items():
        figure, _, name = key.partition(", ")
        if figure != "rows_per_s":
            continue
        line = f"{title}: {name:<36}{rate:>10,.0f} rows/s{figures[f'cpu_us, {name}']:>9.1f} us of CPU a row"
        if (ratio := figures.get(f"ratio, {name}")) is not None:
            low, high = figures[f"ratio_low, {name}"], figures[f"ratio_high, {name}"]
            line += f"; the buffer {ratio:.2f} times [{low:.2f}, {high:.2f}]"
        print(line, flush=True)


def least_ratio(figures: Mapping[str, float], terms: Sequence[str], systems: Sequence[str]) -> float:
    """The least of the median ratios at these terms and beside these systems."""
    return min(figures[f"ratio, {term}, {system}"] for term in terms for system in systems)


def append_bars(figures: Mapping[str, float]) -> list[Bar]:
    """Appends of 8 rows a call beside the faster SQLite, the least of the four equal terms, and CPU a row."""
    terms = [f"{durability}, {form}" for durability in DURABILITIES for form in FORMS]
    return [
        Bar("append_8row_vs_sqlite", least_ratio(figures, terms, PEERS), 1.3),
        Bar("append_cpu_us_per_row_8_arrow", figures["cpu_us, process, encoded, buffer"], 80, ceiling=True),
        Bar(
            "append_cpu_us_per_row_8_objects", figures["cpu_us, process, objects, buffer"], 130, ceiling=True
        ),
        Bar("append_vs_bare_add512", figures["ratio, process, encoded, bare add of 512"], 0.9),
    ]


def lease_bars(figures: Mapping[str, float]) -> list[Bar]:
    """Leases beside SQLite, the least of both forms; rows that are still pickled cannot be trained on."""
    bars = []
    for term, bound in zip(TERMS, (3.0, 1.0), strict=True):
        encoded = least_ratio(figures, [f"{term}, encoded"], ["sqlite raw"])
        arrays = least_ratio(figures, [f"{term}, arrays"], PEERS)
        bars.append(Bar(f"lease_{term}_vs_sqlite", min(encoded, arrays), bound))
    return bars


def trinity_bars(
    appends: Mapping[int, Mapping[str, float]], leases: Mapping[str, float], theirs: Mapping[str, float]
) -> list[Bar]:
    """Bars beside Trinity-RFT's storage, which is given objects and does not fsync."""
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
        bars.append(
            Bar("lease_fifo_vs_trinity", leases["rows_per_s, hot, arrays, buffer"] / theirs["read_512"], 20.0)
        )
    return bars


def growth(*, quick: bool) -> tuple[list[Bar], dict[str, Any]]:
    """Costs of a large and long-lived buffer: leases, latency, memory, restart, bytes."""
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
