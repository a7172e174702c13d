"""`python -m benchmarks.crash.recorded FOLDER SEED`: a life under `durability: power`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.crash.children import COMPACT_EVERY
from benchmarks.crash.orders import Orders
from benchmarks.crash.run_start import live
from rft_data.buffer import maintenance

KEEP_VERSIONS_S = 2.0
"""Longer than opening a version takes under strace on a busy machine."""

if __name__ == "__main__":
    folder, seed = sys.argv[1:]
    maintenance.COMPACT_EVERY = COMPACT_EVERY
    maintenance.KEEP_VERSIONS_S = KEEP_VERSIONS_S
    live(Orders(Path(folder), 0, int(seed), "power", finish=True))
