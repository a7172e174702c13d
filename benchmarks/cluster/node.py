"""`python -m benchmarks.cluster.node POOL SECRET ACKED`: some explorers, or a trainer, in one process.

It reads orders (JSON, a line each) and answers each with a line of JSON. Every group that was acknowledged is
a line of the file ACKED before anything else is done, so that the file is right after a SIGKILL.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.replay import Replay
from benchmarks.rows import GROUP, group_result
from rft_data.buffer import Appended
from rft_data.core.words import HubRole
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HubClient
from rft_data.placement.hub.run_files import PART_BYTES

LEASED_GROUPS = 8
_DEADLINE_S = 120.0
_PAUSE_S = 0.5
"""Between two leases."""


@dataclass(frozen=True, slots=True)
class Node:
    """What the process was started with."""

    pool: Path
    secret: str
    acked: int
    """File descriptor."""

    def note(self, group: str) -> None:
        """Write down outside that a group was acknowledged."""
        os.write(self.acked, f"{group}\n".encode())

    def explore(self, order: dict[str, Any]) -> dict[str, Any]:
        """Let explorers append for a time, or until a file is there; with a rate, at set times."""
        gate = threading.Barrier(len(order["names"]))
        with ThreadPoolExecutor(len(order["names"])) as threads:
            work = [threads.submit(self._explorer, name, order, gate) for name in order["names"]]
            found = [one.result() for one in work]
        return {
            "rows": GROUP * sum(len(latencies) for latencies, _ in found),
            "append_s": [latency for latencies, _ in found for latency in latencies],
            "fetch_s": [latency for _, latencies in found for latency in latencies],
        }

    def _explorer(
        self, name: str, order: dict[str, Any], gate: threading.Barrier
    ) -> tuple[list[float], list[float]]:
        """Seconds of each append and of each fetch of weights that appeared."""
        replay = Replay(self.pool, name)
        weights = Weights(Path(order["weights"])) if "weights" in order else None
        waiting: deque[Future[Appended]] = deque()
        took: list[float] = []
        fetched: list[float] = []
        token = make_token(self.secret, HubRole.EXPLORER, name)
        with HubClient(order["address"], token) as client:
            client.connection.call("mark", {}, deadline_s=_DEADLINE_S)  # connects, with TLS's handshake
            gate.wait()
            begin, every = time.perf_counter(), order.get("every_s", 0.0)
            due = begin + every * random.random()  # noqa: S311 - explorers do not end rollouts together
            while not _over(order, begin):
                table = replay.group()
                if every:
                    time.sleep(max(0.0, due - time.perf_counter()))
                waiting.append(
                    self._append(client, table, due if every else time.perf_counter(), took.append)
                )
                due += every
                while len(waiting) >= order["window"]:
                    waiting.popleft().result()
                if weights is not None:
                    fetched += weights.fetch(client)
            for future in waiting:
                future.result()
        return took, fetched

    def _append(
        self, client: HubClient, table: Any, since: float, took: Callable[[float], None]
    ) -> Future[Appended]:
        group = table.column("group_id")[0].as_py()

        def stored(done: Future[Appended]) -> None:
            if done.exception() is None and len(done.result().seqs) == GROUP:
                self.note(group)
                took(time.perf_counter() - since)

        future = client.submit(table, deadline_s=_DEADLINE_S)
        future.add_done_callback(stored)
        return future

    def learn(self, order: dict[str, Any]) -> dict[str, Any]:
        """Lease eight groups with their rows twice a second, as far as they are stored."""
        took: list[float] = []
        token = make_token(self.secret, HubRole.TRAINER, "trainer")
        with HubClient(order["address"], token) as client:
            ledger = client.ledger("run", 0)
            ledger.attach("trainer")
            end, step = time.perf_counter() + order["seconds"], 0
            while time.perf_counter() < end:
                groups = range(step * LEASED_GROUPS, (step + 1) * LEASED_GROUPS)
                if len(client) >= groups.stop * GROUP:
                    began = time.perf_counter()
                    lease = ledger.grant("trainer", step, 1, [group_result(number) for number in groups])
                    if client.take(lease.seqs).num_rows != len(lease.seqs):
                        raise RuntimeError(f"lease of step {step} has rows that are not stored")
                    took.append(time.perf_counter() - began)
                    step += 1
                time.sleep(_PAUSE_S)
        return {"lease_s": took}


def _over(order: dict[str, Any], begin: float) -> bool:
    """Whether an explorer may end."""
    if "until" in order:
        return Path(order["until"]).exists()
    return time.perf_counter() >= begin + float(order["seconds"])


class Weights:
    """The published weights that an explorer has not fetched yet."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the hub's run; here only its names are looked at, which a run tells its explorers."""
        self._folder = folder
        self._have = {path.name for path in folder.iterdir()}

    def fetch(self, client: HubClient) -> list[float]:
        """Fetch new versions through the hub; seconds since each was published."""
        took = []
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(".") or path.name in self._have:
                continue
            listed = client.connection.call("list_files", {"folder": str(path)}, deadline_s=_DEADLINE_S)
            for name, (size, _) in listed.items():
                for offset in range(0, size, PART_BYTES):
                    where = {"folder": str(path), "name": name, "offset": offset}
                    client.connection.rows("read_file", where, deadline_s=_DEADLINE_S)
            self._have.add(path.name)
            took.append(time.time() - path.stat().st_mtime)
        return took


def main() -> None:
    """Obey until standard input ends."""
    acked = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    node = Node(Path(sys.argv[1]), sys.argv[2], acked)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps({"explore": node.explore, "learn": node.learn}[order["do"]](order)), flush=True)


if __name__ == "__main__":
    main()
