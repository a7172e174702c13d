"""The processes of the benchmark: a hub on a fresh buffer, and nodes that hold explorers or the trainer."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from rft_data.buffer import Buffer
from rft_data.placement.hub.address import parse_address

_TICKS = os.sysconf("SC_CLK_TCK")
ANYWHERE = "0.0.0.0"  # noqa: S104 - not loopback, so that the hub speaks TLS


class Process:
    """A child that obeys orders on its standard input."""

    def __init__(self, module: str, *arguments: object) -> None:
        """Start it; it inherits this process's standard error."""
        self._module = module
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self._child = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        self._in, self._out = cast("IO[str]", self._child.stdin), cast("IO[str]", self._child.stdout)

    def line(self) -> str:
        """Its next line. Raises: RuntimeError if it ended instead."""
        found = self._out.readline()
        if not found:
            raise RuntimeError(f"{self._module} ended with {self._child.wait()}")
        return found.strip()

    def order(self, **order: object) -> None:
        """Tell it what to do; `answer` waits for it."""
        self._in.write(json.dumps(order) + "\n")
        self._in.flush()

    def answer(self) -> dict[str, Any]:
        """Answer to the last order."""
        found: dict[str, Any] = json.loads(self.line())
        return found

    @property
    def cpu_s(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def kill(self) -> None:
        """SIGKILL."""
        self._child.kill()
        self._child.wait()

    def end(self) -> None:
        """Let it end by itself; idempotent."""
        if self._child.poll() is None:
            self._in.close()
            self._child.wait(60)


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub at work."""

    process: Process
    folder: Path
    address: str

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(re.findall(r":(\d+)", self.address)[0])

    @property
    def weights(self) -> Path:
        """The folder of the run's published weights."""
        return self.folder / "run" / "weights"

    def through(self, port: int) -> str:
        """Its address behind a link."""
        return self.address.replace(f":{self.port}", f":{port}", 1)

    def publish(self, version: int, size: int) -> None:
        """Make a version of weights appear."""
        draft = self.weights / f".draft-{version}"
        draft.mkdir()
        (draft / "model.safetensors").write_bytes(os.urandom(size))
        draft.rename(self.weights / f"v{version:08d}")
        os.utime(self.weights / f"v{version:08d}")


class Cluster:
    """Nodes that stay, and hubs that come and go."""

    def __init__(self, root: Path, pool: Path, nodes: int) -> None:
        """Start the nodes."""
        self.root, self._pool = root, pool
        self.secret = secrets.token_urlsafe(32)
        self._made = 0
        self.nodes = [self.node() for _ in range(nodes)]
        self.trainer = self.node()

    def node(self) -> Process:
        """Start another node."""
        self._made += 1
        acked = self.root / f"acked-{self._made}.txt"
        node = Process("benchmarks.cluster.node", self._pool, self.secret, acked)
        node.answer()
        return node

    @contextmanager
    def hub(self, name: str, host: str = ANYWHERE) -> Iterator[Hub]:
        """A hub on a buffer of its own."""
        folder = self.root / name
        (folder / "run" / "weights").mkdir(parents=True)
        with ExitStack() as ending:
            process = Process("benchmarks.cluster.hub", folder, self.secret, host)
            ending.callback(process.end)
            yield Hub(process, folder, str(replace(parse_address(process.line()), host="127.0.0.1")))

    def acknowledged(self, names: Sequence[str]) -> set[str]:
        """Groups of these explorers whose appends were answered, as written down outside the hub."""
        lines = [line for file in self.root.glob("acked-*.txt") for line in file.read_text().splitlines()]
        return {line for line in lines if line.partition("/")[2].rpartition("-")[0] in names}

    def close(self) -> None:
        """End every node."""
        for node in (*self.nodes, self.trainer):
            node.end()


def lost(folder: Path, acknowledged: set[str], members: int) -> int:
    """Rows of acknowledged groups that are not stored, stored twice, or in part of a group."""
    with Buffer(folder / "buffer", read_only=True) as buffer:
        stored = buffer.read("experiences", ["experience_id", "group_id"]).to_pylist()
    by_group = Counter(row["group_id"] for row in stored)
    missing = sum(members - min(members, by_group[group]) for group in acknowledged)
    twice = len(stored) - len({row["experience_id"] for row in stored})
    partial = sum(count for count in by_group.values() if count != members)
    return missing + twice + partial
