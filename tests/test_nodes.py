"""The nodes themselves: what one has of its own, what a cut cable does, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import nodes as kit
from tests.cluster.nodes import Nodes, nodes_of
from tests.processes import runs
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

_RECEIVE = """
import socket, sys
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("ready", flush=True)
    connection, (peer, _) = server.accept()
    print(peer, connection.makefile().read(), flush=True)
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as connection:
    connection.sendall(sys.argv[3].encode())
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    with nodes_of(2) as made:
        yield made


def test_nodes_reach_each_other_under_their_own_addresses(two: Nodes) -> None:
    receiver = two[0].start(sys.executable, "-c", _RECEIVE, log="received")
    log = two[0].file("received")
    wait_for(lambda: log.read_text() == "ready\n")
    two[1].run(sys.executable, "-c", _SEND, two[0].address, "30", "hello")
    assert receiver.wait(30) == 0
    assert log.read_text() == f"ready\n{two[1].address} hello\n"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])  # noqa: S108
def test_node_has_its_own_folders(two: Nodes, folder: str) -> None:
    two[0].run("touch", f"{folder}/of-node1")
    assert two[0].run("ls", f"{folder}/of-node1")
    with pytest.raises(subprocess.CalledProcessError):
        two[1].run("ls", f"{folder}/of-node1")
    assert not Path(folder, "of-node1").exists()


def test_node_sees_only_its_own_processes_and_the_machine_none_of_its_network(two: Nodes) -> None:
    seen = two[0].run(sys.executable, "-c", "import os; print(sum(n.isdigit() for n in os.listdir('/proc')))")
    assert int(seen) == 2, "its first process and the one that counts"
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert "to-node1" not in links
    assert two[0].run("hostname").strip() == "node1"


def test_cut_cable_loses_what_is_sent_and_a_mended_one_does_not(two: Nodes) -> None:
    receiver = two[0].start(sys.executable, "-c", _RECEIVE, log="cut")
    log = two[0].file("cut")
    wait_for(lambda: log.read_text() == "ready\n")
    with two.is_cut(two[1]), pytest.raises(subprocess.CalledProcessError):
        two[1].run(sys.executable, "-c", _SEND, two[0].address, "1", "lost")
    assert log.read_text() == "ready\n"
    two[1].run(sys.executable, "-c", _SEND, two[0].address, "30", "came")
    assert receiver.wait(30) == 0
    assert log.read_text().endswith("came\n")


@pytest.mark.parametrize("how", [{"rate_mbit": 8}, {"loss_percent": 50}])
def test_shaped_link_loses_what_is_too_much_for_it(two: Nodes, how: dict[str, int]) -> None:
    measure = "import socket, time, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    count = (
        measure + "s.bind(('0.0.0.0', 7001)); s.settimeout(float(sys.argv[1])); print('ready', flush=True)\n"
    )
    count += "got = 0\ntry:\n    while True:\n        got += len(s.recv(65536))\n"
    count += "except TimeoutError:\n    print(got, flush=True)\n"
    send = measure + "for n in range(2000): s.sendto(bytes(1000), (sys.argv[1], 7001))\n"
    two.shape(two[0], **how)
    try:
        counter = two[0].start(sys.executable, "-c", count, "1", log="shaped")
        wait_for(lambda: "ready" in two[0].file("shaped").read_text())
        two[1].run(sys.executable, "-c", send, two[0].address)
        assert counter.wait(30) == 0
    finally:
        two.shape(two[0])
    got = int(two[0].file("shaped").read_text().split()[1])
    assert 0 < got < 1_500_000, "of two million bytes that were sent at once"


def test_delayed_link_answers_later(two: Nodes) -> None:
    code = "import socket, sys, time\nbegan = time.monotonic()\n"
    code += "try:\n    socket.create_connection((sys.argv[1], 7002))\n"
    code += "except ConnectionRefusedError:\n    print(time.monotonic() - began)"
    two.shape(two[0], delay_ms=200)
    try:
        assert float(two[1].run(sys.executable, "-c", code, two[0].address)) >= 0.2
    finally:
        two.shape(two[0])


def test_killed_node_takes_its_processes_with_it_and_leaves_the_other(two: Nodes) -> None:
    with nodes_of(1) as alone:
        sleeper = alone[0].start("sleep", "1000", log="sleep")
        inside = _children(sleeper.pid)
        alone[0].kill()
        wait_for(lambda: not any(runs(pid) for pid in [alone[0].pid, *inside]))
        assert sleeper.wait(30) != 0
    assert runs(two[0].pid)


def test_nothing_stays_of_nodes_whose_test_failed_or_was_killed() -> None:
    left: list[int] = []
    with pytest.raises(subprocess.CalledProcessError):
        _fail_with_nodes(left)
    assert len(left) == 2
    wait_for(lambda: not any(map(runs, left)))
    code = (
        "import sys, time\nfrom tests.cluster.nodes import nodes_of\n"
        "with nodes_of(1) as made:\n print(made.switch.pid, made[0].pid, flush=True)\n time.sleep(1000)\n"
    )
    root = str(Path(kit.__file__).parents[2])
    child = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    left = [int(pid) for pid in child.stdout.readline().split()]
    assert len(left) == 2
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    child.stdout.close()
    wait_for(lambda: not any(map(runs, left)))


def _fail_with_nodes(pids: list[int]) -> None:
    with nodes_of(1) as made:
        pids += [made.switch.pid, made[0].pid]
        made[0].run("false")


def _children(pid: int) -> list[int]:
    wait_for(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text())
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
