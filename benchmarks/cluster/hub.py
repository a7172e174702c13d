"""`python -m benchmarks.cluster.hub FOLDER SECRET HOST`: the hub of the benchmark, in a process of its own.

It prints its address and serves until its standard input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.placement.hub.run_files import RunFolders
from rft_data.placement.hub.server import HubServer


def main() -> None:
    """Serve."""
    folder, secret, host = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    run = RunFolders(folder / "run")
    with Buffer(folder / "buffer") as buffer, HubServer(buffer, host=host, token=secret, folders=run) as hub:
        print(hub.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
