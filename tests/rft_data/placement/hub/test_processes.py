"""Clients and the hub in processes of their own, and the hub killed under them."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.placement.hub import HubClient
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.conftest import SEND, HubProcess, spawn, wait_for

PER_CALL = 5


@pytest.fixture
def served(tmp_path: Path) -> Iterator[HubProcess]:
    process = HubProcess(tmp_path / "buffer")
    yield process
    if process.process.poll() is None:
        process.close()


def sender(hub: HubProcess, first: int, last: int, times: int, gate: Path | str = "") -> subprocess.Popen:
    """A process that appends; its last call waits until there is a file `gate`."""
    return spawn(SEND, hub.address, hub.token, gate, first, last, PER_CALL, times)


def acks_of(process: subprocess.Popen) -> dict[int, int]:
    """What a sender was told: row number of each experience, by its own number."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    told: dict[int, int] = {}
    for line in output.splitlines():
        start, *seqs = map(int, line.split())
        for number, seq in enumerate(seqs, start):
            assert told.setdefault(number, seq) == seq, "a row sent again has another number now"
    return told


def check(root: Path, acks: list[dict[int, int]], expected: int) -> None:
    """Every row that anybody was told of is there once, under the number told."""
    with Buffer(root) as buffer:
        rows = buffer.take(range(len(buffer)))
    assert rows.column("member").num_chunks
    found = dict(zip(rows.column("member").to_pylist(), rows.column("seq").to_pylist(), strict=True))
    assert rows.num_rows == len(found) == expected
    assert sorted(rows.column("seq").to_pylist()) == list(range(expected))
    for told in acks:
        assert told.items() <= found.items()
    assert {number for told in acks for number in told} == set(range(expected))


@pytest.mark.heavy
def test_processes_with_overlapping_resends_store_each_row_once(served: HubProcess) -> None:
    senders = [sender(served, 40 * n, 40 * n + 80, times=2) for n in range(3)]
    acks = [acks_of(process) for process in senders]
    assert [len(told) for told in acks] == [80, 80, 80]
    served.close()
    check(served.root, acks, 160)


@pytest.mark.heavy
def test_a_hub_killed_under_its_clients_loses_and_doubles_nothing(served: HubProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"  # none is done before the last kill
    senders = [sender(served, 300 * n, 300 * n + 400, times=1, gate=gate) for n in range(3)]
    with HubClient(served.address, served.token) as watcher:
        for target in (100, 350, 600):
            wait_for(lambda target=target: len(watcher) >= target)
            served.kill()
            assert all(process.poll() is None for process in senders)
            served.start()
        gate.touch()
        acks = [acks_of(process) for process in senders]
        assert watcher.append([make_experience(0)]).stored == 0
    served.close()
    check(served.root, acks, 1000)


@pytest.mark.heavy
def test_a_hub_that_dies_inside_appends_is_sent_them_again(tmp_path: Path) -> None:
    deaths = [
        {"RFT_FAILPOINT": f"{point}:4:kill"}
        for point in ("store.write", "store.commit", "store.committed", "append.ack")
    ]
    hub = HubProcess(tmp_path / "buffer", **deaths[0])
    process = sender(hub, 0, 240, times=1)
    for next_death in (*deaths[1:], {}):
        assert hub.process.wait(60) == -signal.SIGKILL
        hub.start(**next_death)
    acks = acks_of(process)
    hub.close()
    check(hub.root, [acks], 240)


@pytest.mark.slow
def test_a_killed_client_leaves_whole_appends(served: HubProcess) -> None:
    victim = sender(served, 0, 10_000, times=1)
    told = [int(victim.stdout.readline().split()[0]) for _ in range(20)]
    victim.kill()
    victim.wait(30)
    served.close()
    with Buffer(served.root) as buffer:
        assert len(buffer) >= len(told) * PER_CALL
        assert len(buffer) % PER_CALL == 0
