"""`python -m benchmarks.cluster [--quick] [--explorers 1,4,16,64] [--seconds 20] [--root DIR]`.

Explorers that replay stored rollouts against one real hub over TLS: appends at a set rate, beside a trainer
that leases and weights that are published; appends as fast as the hub takes them; nodes that are killed; a
link that is cut and searched. Explorers share a few processes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster.faults import what_breaks
from benchmarks.cluster.processes import Cluster, Hub, Process
from benchmarks.cluster.replay import store_pool
from benchmarks.report import Bar, finish

GROUPS_PER_S = 20
"""Groups of all explorers together: about 160,000 tokens a second."""
TOKENS = 1000
WINDOW = 64
"""Appends under way in all, as fast as the hub takes them; a client has at most 32."""
PUBLISHED_EVERY_S, WEIGHTS_BYTES = 2.0, 4 << 20


def dealt(cluster: Cluster, explorers: int, prefix: str) -> list[tuple[Process, list[str]]]:
    """Names of explorers by the node that holds them."""
    names = [f"{prefix}e{number}" for number in range(explorers)]
    nodes = cluster.nodes[:explorers]
    return [(node, names[place :: len(nodes)]) for place, node in enumerate(nodes)]


def at_a_rate(cluster: Cluster, hub: Hub, explorers: int, seconds: float) -> dict[str, float | None]:
    """p95 of append, lease and publication at GROUPS_PER_S in all."""
    places = dealt(cluster, explorers, "rate")
    common = {"address": hub.address, "seconds": seconds}
    for node, names in places:
        order = {"do": "explore", "names": names, "every_s": explorers / GROUPS_PER_S, "window": 32}
        node.order(**order, **common, weights=str(hub.weights))
    cluster.trainer.order(do="learn", **common)
    before, began = _cpu(hub, places), time.perf_counter()
    version = 0
    while time.perf_counter() < began + seconds - PUBLISHED_EVERY_S / 2:
        version += 1
        hub.publish(version, WEIGHTS_BYTES)
        time.sleep(min(PUBLISHED_EVERY_S, seconds / 2))
    found = [node.answer() for node, _ in places]
    leases = cluster.trainer.answer()["lease_s"]
    return {
        "append_p95_ms": _p95([took for one in found for took in one["append_s"]]),
        "lease_p95_ms": _p95(leases),
        "publication_p95_ms": _p95([took for one in found for took in one["fetch_s"]]),
        **{f"rate_{name}": value for name, value in _used(hub, places, before, began).items()},
    }


def at_full_speed(cluster: Cluster, hub: Hub, explorers: int, seconds: float) -> dict[str, float]:
    """Rows a second as fast as the hub takes them, and the cores that each side uses."""
    places = dealt(cluster, explorers, "full")
    window = max(1, min(32, WINDOW // explorers))
    before, began = _cpu(hub, places), time.perf_counter()
    for node, names in places:
        node.order(do="explore", names=names, window=window, address=hub.address, seconds=seconds)
    rows = sum(node.answer()["rows"] for node, _ in places)
    took = time.perf_counter() - began
    return {"rows_per_s": rows / took, **_used(hub, places, before, began)}


def _cpu(hub: Hub, places: Sequence[tuple[Process, list[str]]]) -> tuple[float, float]:
    return hub.process.cpu_s, sum(node.cpu_s for node, _ in places)


def _used(
    hub: Hub, places: Sequence[tuple[Process, list[str]]], before: tuple[float, float], began: float
) -> dict[str, float]:
    """Cores that the hub and all explorers have used since."""
    wall, after = time.perf_counter() - began, _cpu(hub, places)
    return {"hub_cores": (after[0] - before[0]) / wall, "explorer_cores": (after[1] - before[1]) / wall}


def _p95(seconds: Sequence[float]) -> float | None:
    return 1000 * float(np.percentile(seconds, 95)) if seconds else None


def measured(
    cluster: Cluster, explorers: Sequence[int], seconds: float
) -> dict[int, dict[str, float | None]]:
    """The figures by number of explorers, each with a hub of its own."""
    found: dict[int, dict[str, float | None]] = {}
    for count in explorers:
        with cluster.hub(f"with-{count}") as hub:
            found[count] = at_a_rate(cluster, hub, count, seconds)
            found[count] |= at_full_speed(cluster, hub, count, seconds)
        shown = ", ".join(f"{name} {value or float('nan'):,.4g}" for name, value in found[count].items())
        print(f"{count:>3} explorers: {shown}", flush=True)
    return found


def bars(sizes: Mapping[int, Mapping[str, Any]], faults: Mapping[str, Any]) -> list[Bar]:
    """Bars of the cluster."""
    most, least = max(sizes), min(sizes)
    return [
        Bar(f"explorers_held_{most}", sizes[most]["append_p95_ms"], 250, ceiling=True),
        Bar(f"rows_per_s_{most}_vs_{least}", sizes[most]["rows_per_s"] / sizes[least]["rows_per_s"], 0.9),
        *(
            Bar(name, faults[name], 0, ceiling=True)
            for name in ("node_kill_lost", "link_cut_lost", "bytes_in_clear")
        ),
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short: does it run at all")
    parser.add_argument("--explorers", default="1,4,16,64", help="how many, one cell each")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each cell's two halves")
    parser.add_argument("--root", type=Path, help="keep the buffers here")
    arguments = parser.parse_args(argv)
    sizes = [2] if arguments.quick else [int(text) for text in arguments.explorers.split(",")]
    seconds = 0.4 if arguments.quick else arguments.seconds
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.root or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        rows = store_pool(root / "pool.arrow", 100 if arguments.quick else TOKENS)
        cluster = Cluster(root, root / "pool.arrow", 2 if arguments.quick else 4)
        with closing(cluster):
            found = measured(cluster, sizes, seconds)
            faults = what_breaks(cluster, rows, max(sizes), silent=not arguments.quick)
    versions = {name: metadata.version(name) for name in ("rft-data", "pylance", "pyarrow")}
    finish(bars(found, faults), versions, {**{str(n): f for n, f in found.items()}, **faults})


if __name__ == "__main__":
    main()
