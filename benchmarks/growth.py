"""Measurements that need a process and a memory of their own: large buffers, many commits.

`python -m benchmarks.growth NAME N` prints one JSON object; the functions start that process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import GROUP, RowMaker, group_result
from rft_data.buffer import Buffer
from rft_data.core.groups import GroupResult
from rft_data.sampler.ledger import Ledger

NARROW_TOKENS = 50
LEASES = 60


def random_leases(rows: int) -> dict[str, float]:
    """A buffer of `rows` narrow rows: time of a random lease (ledger included), restart, index."""
    return _in_process("random_leases", rows)


def commit_drift(commits: int) -> dict[str, float]:
    """Latency of 8-row appends of 1k tokens, one at a time, over many commits, and the memory they take."""
    return _in_process("commit_drift", commits)


def memory_of_owner(rows: int) -> dict[str, float]:
    """Peak memory of an owner that stores `rows` rows of 1k tokens and compacts them; bytes on disk."""
    return _in_process("memory_of_owner", rows)


def _in_process(name: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", name, str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this file
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _random_leases(folder: Path, rows: int) -> dict[str, Any]:
    maker = RowMaker(NARROW_TOKENS)
    with Buffer(folder) as buffer:
        for start in range(0, rows, 4096):
            buffer.append(maker.table(min(4096, rows - start)))
    before = _rss_mb()
    start = time.perf_counter()
    buffer = Buffer(folder)
    restart = time.perf_counter() - start
    ledger = Ledger(buffer, "run", 0)
    rng = np.random.default_rng(1)
    times = []
    for step in range(LEASES):
        picked = rng.choice(rows // GROUP, 64, replace=False).tolist()
        groups = [group_result(number) for number in picked]
        fresh = [g for g in groups if not _was_leased(ledger, g)]
        start = time.perf_counter()
        lease = ledger.grant("trainer", step, 1, fresh)
        buffer._experiences.take(lease.seqs, trained_only=True)
        times.append((time.perf_counter() - start) * 1e3)
    buffer.close()
    index = buffer._experiences._index.nbytes
    return {
        "p50_ms": float(np.percentile(times[5:], 50)),
        "p95_ms": float(np.percentile(times[5:], 95)),
        "restart_s": restart,
        "restart_rss_mb": _rss_mb() - before,
        "index_mb": index / 2**20,
        "fragments": len(buffer._store.head("experiences").get_fragments()),
    }


def _was_leased(ledger: Ledger, group: GroupResult) -> bool:
    """Whether a group was leased before."""
    return any(group.ticket.group_id in lease.group_ids for lease in ledger.leases("trainer"))


def _commit_drift(folder: Path, commits: int) -> dict[str, Any]:
    maker = RowMaker(1000)
    tables = [maker.table(GROUP) for _ in range(64)]
    buffer = Buffer(folder)
    times, memory = [], []
    tenth = max(1, commits // 10)
    for commit in range(commits):
        table = tables.pop() if tables else maker.table(GROUP)
        start = time.perf_counter()
        buffer.append(table)
        times.append((time.perf_counter() - start) * 1e3)
        if (commit + 1) % tenth == 0:
            memory.append(_rss_mb("VmRSS"))
    buffer.close()
    first, last = times[:tenth], times[-tenth:]
    return {
        "p50_first_ms": float(np.percentile(first, 50)),
        "p50_last_ms": float(np.percentile(last, 50)),
        "p95_first_ms": float(np.percentile(first, 95)),
        "p95_last_ms": float(np.percentile(last, 95)),
        "longest_ms": max(times),
        "rss_first_mb": memory[0],
        "rss_last_mb": memory[-1],
        "peak_rss_mb": _rss_mb(),
    }


def _memory_of_owner(folder: Path, rows: int) -> dict[str, Any]:
    maker = RowMaker(1000, pool=64)
    before = _rss_mb()
    with Buffer(folder) as buffer:
        for start in range(0, rows, 512):
            buffer.append(maker.table(min(512, rows - start)))
        buffer.compact()
    table = folder / "experiences.lance"
    live = {
        file.path
        for fragment in buffer._store.head("experiences").get_fragments()
        for file in fragment.data_files()
    }
    size = sum((table / "data" / name).stat().st_size for name in live)
    return {"peak_rss_mb": _rss_mb(), "rss_before_mb": before, "bytes_per_row": size / rows}


def _rss_mb(what: str = "VmHWM") -> float:
    """Resident memory of this process, its peak unless `what` is VmRSS (getrusage counts a parent's too)."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(what)).split()[1]) / 1024


def main() -> None:
    """Run one measurement and print it."""
    name, count = sys.argv[1], int(sys.argv[2])
    measure = {
        "random_leases": _random_leases,
        "commit_drift": _commit_drift,
        "memory_of_owner": _memory_of_owner,
    }
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure[name](Path(folder) / "buffer", count)))


if __name__ == "__main__":
    main()
