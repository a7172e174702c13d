"""What runs over several nodes of a network, which have no folder in common; see tests/cluster/nodes.py."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator

import pytest

from rft_data.core.words import HubRole
from rft_data.placement.hub.access import make_token
from tests.cluster.nodes import Nodes, nodes_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRET = "the-secret-of-these-tests"  # noqa: S105
SERVE = """
import sys, time
from rft_data.buffer import Buffer
from rft_data.placement.hub import HubServer
with Buffer("buffer") as buffer, HubServer(buffer, host=sys.argv[1], token=sys.argv[2]) as hub:
    print(hub.address, flush=True)
    time.sleep(1000)
"""
APPEND = """
import sys
from rft_data.placement.hub import HubClient
from tests.rft_data.conftest import make_experience
with HubClient(sys.argv[1], sys.argv[2]) as client:
    for start in range(0, 400, 4):
        done = client.append([make_experience(n) for n in range(start, start + 4)])
        print(*done.seqs, flush=True)
"""
READ = """
import sys
from rft_data.placement.hub import HubClient
with HubClient(sys.argv[1], sys.argv[2]) as client:
    rows = client.read("experiences", ["seq", "experience_id"]).to_pydict()
    print(len(rows["seq"]), len(set(rows["seq"])), len(set(rows["experience_id"])), max(rows["seq"]))
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with nodes_of(3) as made:
        yield made


@pytest.mark.parametrize("cut_s", [3.0])
def test_cut_network_loses_and_doubles_nothing(nodes: Nodes, cut_s: float) -> None:
    home, away = nodes[0], nodes[1]
    home.start(sys.executable, "-c", SERVE, home.address, SECRET, log="hub")
    wait_for(lambda: "hub://" in home.file("hub").read_text())
    address = home.file("hub").read_text().strip()
    assert re.fullmatch(rf"hub://{home.address}:\d+/[0-9a-f]{{64}}", address)
    explorer = make_token(SECRET, HubRole.EXPLORER, "explorer-0")
    sender = away.start(sys.executable, "-c", APPEND, address, explorer, log="sent")

    def acknowledged() -> list[str]:
        return away.file("sent").read_text().split()

    wait_for(lambda: len(acknowledged()) > 40)
    with nodes.is_cut(away):
        time.sleep(cut_s)
        before = len(acknowledged())
        assert before < 400, "it was cut while rows were sent"
        time.sleep(0.5)
        assert len(acknowledged()) == before
    assert sender.wait(120) == 0
    reader = make_token(SECRET, HubRole.READER, "reader")
    stored = away.run(sys.executable, "-c", READ, address, reader).split()
    assert stored == ["400", "400", "400", "399"]
    assert sorted(map(int, acknowledged())) == list(range(400))
