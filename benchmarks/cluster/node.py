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
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.replay import Replay
from benchmarks.rows import GROUP, group_result
from rft_data.buffer import Appended
from rft_data.core.words import HubRole
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HubClient
from rft_data.placement.hub.file_parts import PART_BYTES

LEASED_GROUPS = 8
_DEADLINE_S = 120.0
_PAUSE_S = 0.5
"""Between two leases."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Node:
    """Settings that the process was started with."""

    pool: Path
    secret: str
    acked: int
    """File descriptor."""

    def note(self, group: str) -> None:
        """Write down outside that a group was acknowledged."""
        os.write(self.acked, f"{group}\n".encode())

    def explore(self, order: dict[str, Any]) -> dict[str, Any]:
        """Let explorers append for a time, or until a file is there; with a rate, at set times."""
        names = order["names"]
        gate, over = threading.Barrier(len(names)), threading.Event()
        with ExitStack() as opened, ThreadPoolExecutor(2 * len(names) + 1) as threads:
            clients = [opened.enter_context(self._client(name, order["address"])) for name in names]
            weights = Weights(Path(order["weights"]), clients, over) if "weights" in order else None
            fetching = None if weights is None else threads.submit(weights.follow, threads)
            pairs = zip(names, clients, strict=True)
            work = [threads.submit(self._explorer, name, client, order, gate) for name, client in pairs]
            found = [latency for one in work for latency in one.result()]
            over.set()
            fetched = [] if fetching is None else fetching.result()
        return {"rows": GROUP * len(found), "append_s": found, "fetch_s": fetched}

    def _client(self, name: str, address: str) -> HubClient:
        client = HubClient(address, make_token(self.secret, HubRole.EXPLORER, name))
        client.connection.call("mark", {}, deadline_s=_DEADLINE_S)  # connects, with TLS's handshake
        return client

    def _explorer(
        self, name: str, client: HubClient, order: dict[str, Any], gate: threading.Barrier
    ) -> list[float]:
        """Seconds of each append; at a rate, from the time at which it was due."""
        replay, took = Replay(self.pool, name), list[float]()
        waiting: deque[Future[Appended]] = deque()
        table = replay.group()
        gate.wait()
        begin, every = time.perf_counter(), order.get("every_s", 0.0)
        due = begin + every * random.random()  # noqa: S311 - explorers do not end rollouts together
        while not _over(order, begin):
            if every:
                time.sleep(max(0.0, due - time.perf_counter()))
            waiting.append(self._append(client, table, due if every else time.perf_counter(), took.append))
            table, due = replay.group(), due + every
            while len(waiting) >= order["window"]:
                waiting.popleft().result()
        for future in waiting:
            future.result()
        return took

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
    """Published weights, which every explorer of a node fetches through its own connection."""

    def __init__(self, folder: Path, clients: Sequence[HubClient], over: threading.Event) -> None:
        """`folder`: of the hub's run; here only its names are looked at, which a run tells its explorers."""
        self._folder, self._clients, self._over = folder, clients, over
        self._have = set(folder.iterdir())

    def follow(self, threads: ThreadPoolExecutor) -> list[float]:
        """Fetch each new version until the explorers end; seconds from its publication, for each explorer."""
        fetches: list[Future[float]] = []
        while not self._over.wait(_LOOK_S):
            new = {path for path in self._folder.iterdir() if not path.name.startswith(".")} - self._have
            self._have |= new
            fetches += [threads.submit(_fetch, client, path) for path in new for client in self._clients]
        return [fetch.result() for fetch in fetches]


def _fetch(client: HubClient, path: Path) -> float:
    """Fetch a version through the hub; seconds since it was published."""
    listed = client.connection.call("list_files", {"folder": str(path)}, deadline_s=_DEADLINE_S)
    for name, (size, _) in listed.items():
        for offset in range(0, size, PART_BYTES):
            where = {"folder": str(path), "name": name, "offset": offset}
            client.connection.rows("read_file", where, deadline_s=_DEADLINE_S)
    return time.time() - path.stat().st_mtime


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
