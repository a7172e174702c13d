"""How long the views of `rft view` take over a large buffer: `python -m benchmarks.page`.

The real server in a process of its own, asked over HTTP by one client; beside each time stands a bare Lance
scan of the column that the view must look through. Then rows are appended with and without five people who
click every three seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx
import lance
import numpy as np
import pyarrow as pa

from benchmarks.readers import readers
from benchmarks.report import Bar, finish
from benchmarks.rows import GROUP, RowMaker, group_result
from rft_data.buffer import Buffer
from rft_data.core.rows import now
from rft_data.core.schema import TABLES

TOKENS, CHUNK = 50, 4096
STEPS, KEYS = 1000, 100
_LINK = re.compile(r"http://\S+")


def made_run(folder: Path, rows: int) -> RowMaker:
    """A run of `rows` judged short experiences and 1,000 steps of 100 numbers."""
    folder.mkdir()
    (folder / "recipe.json").write_text(
        json.dumps({"name": "run", "mode": "online", "stages": [{"algorithm": "grpo", "steps": STEPS}]})
    )
    maker = RowMaker(TOKENS)
    with Buffer(folder / "buffer") as buffer:
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            buffer.append(maker.table(count))
            buffer.annotate(_annotations(start, count))
            groups = range(start // GROUP, (start + count) // GROUP)
            buffer.add_rows("groups", [_group(number) for number in groups])
        for start in range(0, STEPS, 100):
            buffer.add_table("metrics", _numbers(start, start + 100))
    return maker


def _annotations(first: int, count: int) -> pa.Table:
    wanted = TABLES["annotations"][0]
    known = {
        "seq": np.arange(first, first + count),
        "pipeline_hash": ["bench"] * count,
        "verdict": ["kept"] * count,
        "advantage": [[0.5]] * count,
    }
    return _filled(wanted, known, count)


def _group(number: int) -> dict[str, object]:
    result = group_result(number)
    return {
        "group_id": result.ticket.group_id,
        "run_id": "run",
        "ordinal": number,
        "round": number,
        "attempt": 0,
        "taskset": "bench",
        "task_id": f"t{number}",
        "version": 1,
        "version_min": 1,
        "outcome": "arrived",
        "rewards": [0.5] * GROUP,
        "seqs": list(range(number * GROUP, (number + 1) * GROUP)),
        "dropped_by": "",
        "error": "",
        "created_at": now(),
    }


def _numbers(first: int, last: int) -> pa.Table:
    wanted, count = TABLES["metrics"][0], (last - first) * KEYS
    keys = ["reward", "loss", "kl", *(f"key_{number}" for number in range(KEYS - 3))]
    known = {
        "run_id": ["run"] * count,
        "step": np.repeat(np.arange(first, last), KEYS),
        "role": ["trainer"] * count,
        "key": keys * (last - first),
        "value": np.random.default_rng(first).random(count),
    }
    return _filled(wanted, known, count)


def _filled(schema: pa.Schema, known: dict[str, object], count: int) -> pa.Table:
    """The known columns, and of the others what is empty."""
    empty: dict[str, object] = {"bool": False, "string": "", "int64": 0}
    columns = []
    for field in schema:
        if field.name in known:
            columns.append(pa.array(known[field.name], field.type))
        elif pa.types.is_timestamp(field.type):
            columns.append(pa.array([now()] * count, field.type))
        else:
            columns.append(pa.array([None if field.nullable else empty[str(field.type)]] * count, field.type))
    return pa.table(columns, schema=schema)


@contextmanager
def served(folder: Path) -> Iterator[tuple[httpx.Client, int]]:
    """`rft view` over a run: a client that has its cookie, and its process id."""
    command = [sys.executable, "-m", "rft_data.cli.app", "view", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:  # noqa: S603
        try:
            link = _LINK.search(server.stdout.readline()) if server.stdout is not None else None
            if link is None:
                raise RuntimeError("rft view printed no link")
            url = httpx.URL(link[0])
            with httpx.Client(
                base_url=url.copy_with(query=None), follow_redirects=True, timeout=60
            ) as client:
                client.get(url).raise_for_status()
                yield client, server.pid
        finally:
            server.terminate()


def p95_ms(ask: Callable[[int], object], times: int) -> float:
    """The 95th percentile of what a call takes, after two calls that are not counted."""
    spent = []
    for number in range(times + 2):
        start = time.perf_counter()
        ask(number)
        spent.append((time.perf_counter() - start) * 1e3)
    return float(np.percentile(spent[2:], 95))


def timed_views(client: httpx.Client, rows: int, times: int) -> dict[str, float]:
    """p95 of each view, ms: a random filter or group each time, so that nothing is asked twice."""
    rng = np.random.default_rng(0)

    def got(path: str, **query: object) -> None:
        client.get(path, params={k: str(v) for k, v in query.items()}).raise_for_status()

    views: dict[str, Callable[[int], None]] = {
        "table": lambda _: got("/s/run/experiences", where=f"reward >= {rng.uniform(0, 0.9):.4f}"),
        "rare": lambda _: got("/s/run/experiences", where=f"task_id = 't{rng.integers(rows // GROUP)}'"),
        "best": lambda _: got(
            "/s/run/experiences", order="best", where=f"reward >= {rng.uniform(0, 0.9):.4f}"
        ),
        "longest": lambda _: got("/s/run/experiences", order="longest"),
        "verdict": lambda _: got(
            "/s/run/experiences", verdict="dropped", where=f"turn < {rng.integers(1, 9)}"
        ),
        "text": lambda _: got(
            "/s/run/experiences", where=f"completion_text contains 'none {rng.integers(rows)}'"
        ),
        "file": lambda _: got("/s/run/experiences/file", format="csv", order="best"),
        "group": lambda _: got(f"/s/run/groups/run/0-{rng.integers(rows // GROUP):08d}"),
        "row": lambda _: got(f"/s/run/rows/{rng.integers(rows)}"),
        "descent": lambda _: got(f"/s/run/rows/{rng.integers(rows)}/descent"),
        "metrics": lambda _: got("/s/run/metric", name="trainer/reward"),
        "run": lambda _: got("/s/run"),
    }
    return {name: p95_ms(view, times) for name, view in views.items()}


def floors(folder: Path, times: int) -> dict[str, float]:
    """p95 of bare Lance scans that answer the same, ms: rewards of all rows, rows of a group, one number."""
    data = {name: lance.dataset(folder / "buffer" / f"{name}.lance") for name in ("experiences", "metrics")}
    scans = {
        "table": ("experiences", ["reward"], "reward >= 0.5"),
        "group": ("experiences", ["seq"], "group_id = 'run/0-00000007'"),
        "metrics": ("metrics", ["step", "value"], "run_id = 'run' AND key = 'reward'"),
    }
    return {
        name: p95_ms(lambda _, t=table, c=columns, w=where: data[t].to_table(c, filter=w), times)
        for name, (table, columns, where) in scans.items()
    }


def throughput(folder: Path, maker: RowMaker, client: httpx.Client, window_s: float, rounds: int) -> float:
    """Rows appended beside five people who click, over rows appended alone; windows in turns."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    with Buffer(folder / "buffer") as buffer:
        for number in range(2 * rounds):
            clicked = number % 2 == 1
            with readers(str(client.base_url), client.cookies) if clicked else nullcontext():
                start, count = time.perf_counter(), 0
                while time.perf_counter() - start < window_s:
                    count += buffer.append(maker.table(256)).stored
                rates[clicked].append(count / (time.perf_counter() - start))
    return statistics.median(rates[True]) / statistics.median(rates[False])


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def main() -> None:
    """Measure, and print bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    args = parser.parse_args()
    rows, times = (4 * CHUNK, 3) if args.quick else (args.rows, 40)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        maker = made_run(folder, rows)
        with served(folder) as (client, pid):
            spent, bare = timed_views(client, rows, times), floors(folder, times)
            files = ("page.css", "reading.css", "icon.svg")
            paths = ("/s/run", *(f"/static/{name}" for name in files))
            sizes = [len(client.get(path).content) for path in paths]
            beside = throughput(folder, maker, client, *((1, 1) if args.quick else (12, 3)))
            memory = resident_mb(pid)
    print(f"{'view':<10}{'p95 ms':>8}{'bare scan':>11}   {rows:,} rows")
    for name, ms in spent.items():
        print(f"{name:<10}{ms:>8.0f}" + (f"{bare[name]:>11.1f}" if name in bare else ""))
    bars = [
        Bar("p95_ms_table", spent["table"], 300, ceiling=True),
        Bar("p95_ms_group", spent["group"], 200, ceiling=True),
        Bar("p95_ms_metrics", spent["metrics"], 200, ceiling=True),
        Bar("first_paint_kb", sum(sizes) / 1024, 250, ceiling=True),
        Bar("server_resident_mb", memory, 500, ceiling=True),
        Bar("run_throughput_beside_five_readers", beside, 0.97),
    ]
    finish(bars, {}, {"p95_ms": spent, "bare_scan_p95_ms": bare, "rows": rows})


if __name__ == "__main__":
    main()
