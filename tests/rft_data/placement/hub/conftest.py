"""A served buffer, a client of it, and what client processes run."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.placement.hub import HubClient, HubServer, wire
from rft_data.placement.hub.frames import Channel, Kind
from tests.template import FORK

REPO = Path(__file__).parents[4]

SERVE = """
import sys
from rft_data.buffer import Buffer
from rft_data.placement.hub import HubServer
root, port, token = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with Buffer(root) as buffer, HubServer(buffer, port=port, token=token) as hub:
    print(hub.address, flush=True)
    sys.stdin.read()
"""

SEND = """
import sys
from pathlib import Path
from rft_data.placement.hub import HubClient
from tests.rft_data.conftest import make_experience
from tests.waiting import wait_for
address, token, gate, first, last, per_call, times = *sys.argv[1:4], *map(int, sys.argv[4:])
with HubClient(address, token) as client:
    for start in range(first, last, per_call):
        if gate and start + per_call >= last:
            wait_for(Path(gate).exists)
        rows = [make_experience(number) for number in range(start, min(start + per_call, last))]
        for _ in range(times):
            done = client.append(rows, deadline_s=60)
            print(start, *done.seqs, flush=True)
"""


def spawn(code: str, *args: object, **pipes: object) -> subprocess.Popen:
    """A Python process that runs `code`."""
    command = [sys.executable, "-c", FORK + code, *map(str, args)]
    return subprocess.Popen(command, cwd=REPO, text=True, stdout=subprocess.PIPE, **pipes)


def wait_for(holds: Callable[[], bool], deadline_s: float = 60.0) -> None:
    """Wait until `holds()`; fail at the deadline."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class HubProcess:
    """A hub in a process of its own, started again on the same port with the same token."""

    def __init__(self, root: Path, **environment: str) -> None:
        """`environment`: variables of the first process only."""
        self.root = root
        self.token = "secret"  # noqa: S105
        self.port = 0
        self.start(**environment)

    def start(self, **environment: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "env": {**os.environ, **environment}}
        self.process = spawn(SERVE, self.root, self.port, self.token, **pipes)
        self.address = self.process.stdout.readline().strip()
        self.port = int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def connected(hub: HubServer, token: str | None = None) -> Channel:
    """A connection to a hub, whose token it has taken: what a client of another make would have."""
    host, _, port = hub.address.removeprefix("hub://").rpartition(":")
    channel = Channel(socket.create_connection((host, int(port)), 10))
    channel.send(Kind.TOKEN, (token or hub.token).encode(), 10)
    answer(channel)
    return channel


def answer(channel: Channel) -> object:
    """What the hub answers."""
    head = channel.head({Kind.ANSWER: 1 << 20}, 20, 10)
    return wire.decode_answer(channel.body(head, 10).to_pybytes())


@contextmanager
def commits_held(buffer: Buffer) -> Iterator[None]:
    """Nothing is stored in the experiences of `buffer` for the length of a `with` block."""
    with buffer._store.locked("experiences"):
        yield


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[Buffer]:
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


@pytest.fixture
def hub(buffer: Buffer) -> Iterator[HubServer]:
    with HubServer(buffer) as served:
        yield served


@pytest.fixture
def client(hub: HubServer) -> Iterator[HubClient]:
    with HubClient(hub.address, hub.token) as connected:
        yield connected
