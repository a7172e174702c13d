"""Room, speed and fsync of the disk that runs are written to."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from rft_data.core.words import Health
from rft_data.run.doctor.finding import Finding

_LEAST_BYTES = 2 << 30
_BLOCK, _BLOCKS, _SYNCS = bytes(1 << 20), 32, 16
_SLOW_MIB_S, _SLOW_SYNC_S = 50.0, 0.05


def disk_finding(folder: Path) -> Finding:
    """Write and sync a little in `folder`, and remove it again."""
    about = f"disk of {folder}"
    try:
        free = shutil.disk_usage(folder).free
        speed, sync = _measured(folder)
    except OSError as err:
        return Finding(about, Health.BAD, f"cannot be written: {err}", "name another folder with --folder")
    found = f"{free / 2**30:.1f} GiB free, writes {speed:.0f} MiB/s, fsync {sync * 1000:.1f} ms"
    if free < _LEAST_BYTES:
        return Finding(about, Health.BAD, found, f"make room: {_LEAST_BYTES >> 30} GiB at least")
    if speed < _SLOW_MIB_S or sync > _SLOW_SYNC_S:
        return Finding(about, Health.NOTE, found, "a slow disk makes every commit wait; use a local one")
    return Finding(about, Health.OK, found)


def _measured(folder: Path) -> tuple[float, float]:
    """MiB a second of a synced write, and the median seconds of an fsync after a small one."""
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        for _ in range(_BLOCKS):
            file.write(_BLOCK)
        file.flush()
        os.fsync(file.fileno())
        speed = _BLOCKS / (time.perf_counter() - start)
        syncs = []
        for _ in range(_SYNCS):
            file.write(_BLOCK[:4096])
            file.flush()
            start = time.perf_counter()
            os.fsync(file.fileno())
            syncs.append(time.perf_counter() - start)
    return speed, statistics.median(syncs)
