"""The hub as a Ray actor on one local cluster."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, ConflictError, RftError
from rft_data.placement.hub import HubClient
from rft_data.placement.hub import actor as hub_actor
from tests.docs.blocks import run_block
from tests.rays import ray_for
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.conftest import REPO
from tests.waiting import wait_for

ray = pytest.importorskip("ray")
PER_CALL = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    environment = {"env_vars": {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}}
    with ray_for(num_cpus=2, log_to_driver=False, runtime_env=environment):
        yield


def send(name: str, first: int, last: int, gate: str) -> dict[int, int]:
    """A Ray task that appends, at last when there is a file `gate`; returns what it was told."""
    told = {}
    with hub_actor.connect(name) as client:
        for start in range(first, last, PER_CALL):
            if start + PER_CALL >= last:
                wait_for(Path(gate).exists)
            numbers = range(start, start + PER_CALL)
            rows = [make_experience(number) for number in numbers]
            told.update(zip(numbers, client.append(rows, deadline_s=120).seqs, strict=True))
    return told


@pytest.mark.heavy
def test_tasks_append_to_an_actor_that_is_killed_under_them(cluster: None, tmp_path: Path) -> None:
    root, name = tmp_path / "buffer", "hub"
    actor = hub_actor.start(str(root), name=name)
    again = hub_actor.start(str(root), name=name)
    first = ray.get(actor.location.remote())
    assert ray.get(again.location.remote()) == first
    with pytest.raises(ConflictError, match="hub 'hub' serves"):
        hub_actor.start(str(tmp_path / "other"), name=name)
    task = ray.remote(send).options(num_cpus=0.5)
    with hub_actor.connect(name) as watcher:
        gate = tmp_path / "gate"  # none is done before the kill
        sent = [task.remote(name, 200 * n, 200 * n + 300, str(gate)) for n in range(3)]
        wait_for(lambda: len(watcher) >= 150)
        ray.kill(actor, no_restart=False)
        gate.touch()
        acks = ray.get(sent, timeout=240)
        assert len(watcher) == 700
    assert ray.get(actor.location.remote()) != first, "the actor was not restarted"
    ray.get(actor.close.remote())
    ray.kill(actor)
    with Buffer(root) as buffer:
        found = buffer.take(range(len(buffer)))
    stored = dict(zip(found.column("member").to_pylist(), found.column("seq").to_pylist(), strict=True))
    assert sorted(stored) == list(range(700)) == found.column("seq").to_pylist()
    for told in acks:
        assert told.items() <= stored.items()


@pytest.mark.slow
def test_the_page_of_the_hub_starts_one(cluster: None, tmp_path: Path) -> None:
    shown = run_block("hub.md", "actor.start(", {"/shared/runs/r1/buffer": str(tmp_path / "buffer")})
    with shown["client"] as client:
        assert list(client.append([make_experience(0)], deadline_s=120).seqs) == [0]
    ray.get(shown["hub"].close.remote())
    ray.kill(shown["hub"])


@pytest.mark.slow
def test_a_hub_that_is_not_there_is_said_so(cluster: None) -> None:
    with pytest.raises(RftError, match="no hub 'nowhere' on this Ray cluster"):
        hub_actor.connect("nowhere")


@pytest.mark.slow
def test_the_actor_serves_its_buffer_and_gives_it_back(tmp_path: Path) -> None:
    root = str(tmp_path / "buffer")
    body = hub_actor.HubActor(root, across_nodes=False)
    assert body.root() == root
    address, token = body.location()
    assert address.startswith("hub://127.0.0.1:")
    with HubClient(address, token) as client:
        client.append([make_experience(0)])
    body.close()
    with Buffer(root) as buffer:
        assert len(buffer) == 1


@pytest.mark.slow
def test_the_actor_waits_for_its_predecessor_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "buffer")
    predecessor = Buffer(root)
    with ThreadPoolExecutor(1) as pool:
        successor = pool.submit(hub_actor.HubActor, root, False)
        with pytest.raises(TimeoutError):
            successor.result(0.5)
        predecessor.close()
        successor.result(30).close()
    monkeypatch.setattr(hub_actor, "TAKEOVER_S", 0.3)
    with Buffer(root), pytest.raises(BusyError, match="is owned by another process"):
        hub_actor.HubActor(root, False)
