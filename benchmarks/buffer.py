"""The buffer's write and read path beside a bare LanceDB table and a SQLite + pickle queue.

`python -m benchmarks.buffer [--quick]`. Rows have 1,000 tokens. The SQLite peer is the honest form of
what queue-based systems do: one pickled blob per row, WAL, one commit per batch.
"""

from __future__ import annotations

import argparse
import pickle
import sqlite3
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Bar, finish
from rft_data.buffer import Buffer
from rft_data.rows import Experience, TaskKey, experience_id_of
from rft_data.schema import EXPERIENCES

TOKENS = 1000


def make_rows(count: int, start: int, rng: np.random.Generator) -> list[Experience]:
    """Rollouts of `TOKENS` random tokens."""
    rows = []
    for number in range(start, start + count):
        task = TaskKey("bench", f"t{number // 8}")
        group = f"run/g{number // 8}"
        rows.append(
            Experience(
                experience_id=experience_id_of("run", task, 0, group, number % 8),
                source="rollout",
                run_id="run",
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=group,
                member=number % 8,
                token_ids=rng.integers(0, 150_000, TOKENS).tolist(),
                prompt_length=200,
                action_mask=[0] * 200 + [1] * (TOKENS - 200),
                logprobs=rng.normal(-1, 1, TOKENS).astype(np.float32).tolist(),
                version_min=1,
                version_max=1,
                version_spans=((1, 200, TOKENS),),
                completion_text="word " * 800,
                reward=float(rng.random()),
            )
        )
    return rows


class PickleQueue:
    """SQLite, one pickled row per record."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, blob BLOB)")

    def append(self, rows: list[Experience]) -> None:
        """One commit."""
        self._db.executemany(
            "INSERT INTO rows VALUES (?, ?)", [(r.experience_id, pickle.dumps(r)) for r in rows]
        )
        self._db.commit()

    def take(self, ids: list[str]) -> list[Any]:
        """Rows by id."""
        marks = ",".join("?" * len(ids))
        found = self._db.execute(f"SELECT blob FROM rows WHERE id IN ({marks})", ids)  # noqa: S608
        return [pickle.loads(blob) for (blob,) in found]  # noqa: S301 - the peer's own bytes


def seconds(act: Callable[[], object], repeats: int = 1) -> float:
    """The shortest wall time of `repeats` runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


def append_rates(folder: Path, batch: int, batches: int) -> dict[str, float]:
    """Rows per second of each store for commits of `batch` rows."""
    import lancedb

    rng = np.random.default_rng(0)
    work = [make_rows(batch, i * batch, rng) for i in range(batches)]
    buffer = Buffer(folder / f"buffer-{batch}")
    queue = PickleQueue(folder / f"queue-{batch}.db")
    rates = {
        "buffer": batch * batches / seconds(lambda: [buffer.append(rows) for rows in work]),
        "sqlite+pickle": batch * batches / seconds(lambda: [queue.append(rows) for rows in work]),
    }
    encoded = buffer.read("experiences")
    bare = lancedb.connect(str(folder / f"bare-{batch}")).create_table("t", schema=EXPERIENCES)
    parts = [encoded.slice(i * batch, batch) for i in range(batches)]
    rates["bare table.add"] = batch * batches / seconds(lambda: [bare.add(part) for part in parts])
    return rates


def take_rates(folder: Path, stored: int) -> dict[str, float]:
    """Rows per second of a random batch of 128, digests checked on our side."""
    rng = np.random.default_rng(1)
    rows = make_rows(stored, 0, rng)
    buffer, queue = Buffer(folder / "read"), PickleQueue(folder / "read.db")
    buffer.append(rows)
    queue.append(rows)
    chosen = rng.choice(stored, 128, replace=False).tolist()
    ids = [rows[i].experience_id for i in chosen]
    return {
        "buffer": 128 / seconds(lambda: buffer.take(chosen), 5),
        "sqlite+pickle": 128 / seconds(lambda: queue.take(ids), 5),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run with few rows")
    quick = parser.parse_args().quick
    bars = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for batch, batches, against_queue in ((8, 10 if quick else 100, 5.0), (512, 1 if quick else 8, 3.0)):
            rates = append_rates(folder, batch, batches)
            print(f"append, {batch} rows a commit, rows/s:", {k: round(v) for k, v in rates.items()})
            bars.append(
                Bar(
                    f"append_{batch}_vs_sqlite_pickle",
                    rates["buffer"] / rates["sqlite+pickle"],
                    against_queue,
                )
            )
            if batch == 512:
                bars.append(Bar("append_512_vs_bare_add", rates["buffer"] / rates["bare table.add"], 0.6))
        rates = take_rates(folder, 256 if quick else 4096)
        print("take 128 random, rows/s:", {k: round(v) for k, v in rates.items()})
        bars.append(Bar("take_128_vs_sqlite_pickle", rates["buffer"] / rates["sqlite+pickle"], 5.0))
    finish(bars, {name: metadata.version(name) for name in ("lancedb", "pylance", "pyarrow")})


if __name__ == "__main__":
    main()
