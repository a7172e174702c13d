"""The child process of `arrow_files.py`: `"batch"` for each whole batch, then the damage or ""."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path

import pyarrow as pa

from rft_data.core.children import connected
from rft_data.exchange.formats.arrow_files import batches, check_batch


def main() -> None:
    """Check the files that the arguments name, batch by batch."""
    channel = connected()
    damage = ""
    try:
        for batch in chain.from_iterable(map(batches, map(Path, sys.argv[3:]))):
            check_batch(batch)
            batch.slice(0, 0).to_pylist()  # reads the names of the columns
            channel.sendall(b'"batch"\n')
    except (OSError, ValueError, MemoryError, pa.ArrowException) as err:
        damage = str(err) or type(err).__name__
    channel.sendall(json.dumps(damage).encode() + b"\n")


if __name__ == "__main__":
    main()
