"""Runs on a Ray cluster that others started: submitted to it as a job, while nodes join and leave it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RftError, StalledError, Stopped
from rft_data.core.roles import RoleSpec
from rft_data.loop import extras
from rft_data.placement.calls import Patience
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.server import HubServer
from rft_data.placement.hub.wire import decode_answer
from rft_data.placement.ray import RayPlacement
from rft_data.recipe import load_recipe
from rft_data.recipe.load import load_data_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.run.conductor import Conductor, conduct
from rft_data.run.curate import curate
from tests.ray_head import Head, kill_node, ray_head
from tests.rft_data.loop.whole_run import WholeRun
from tests.rft_data.run.test_online import (
    ROOT,
    check_books,
    checkpoint,
    gate,
    write_gated,
    write_recipe,
)
from tests.waiting import wait_for

CLEAN = """\
recipe: 1
name: clean
mode: data
tasks:
  - name: sums
    source: {{use: jsonl, path: {root}/tasks.jsonl}}
task_ops:
  - whitespace_normalization_mapper: {{}}
  - special_characters_filter: {{max_ratio: 0.35}}
  - document_deduplicator: {{}}
"""
PLACES = [
    "placement.use=ray",
    "placement.explorers={count: 1, cpus: 0.5}",
    "placement.trainer={cpus: 0.5, processes: 2, over_nodes: true, shard: fsdp2}",
    "explorer.engine.transport.use=gloo",
    "stages.1.checkpoint_every=1",
]
AGENT = """\
async def asks(task, client):
    await client.chat.completions.create(model="policy", messages=list(task.messages))
"""
"""Plays the rollouts; it lies beside the recipe."""


ALONE = pytest.mark.skipif(
    os.environ.get("RFT_TEST_NODES") != "1",
    reason="no cluster: several Rays on one machine starve each other",
)
"""Beside other tests that have a Ray of their own, these waited for minutes."""


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head(cpus=2) as started:
        yield started


@pytest.mark.heavy
@pytest.mark.timeout(900)  # minutes of CPU time, beside whatever else the machine does
def test_a_submitted_run_keeps_every_book_and_survives_its_conductor_and_a_rank(
    tmp_path: Path, head: Head
) -> None:
    recipe, sent = write_gated(tmp_path, 1, 2), tmp_path / "sent"
    sent.mkdir()
    recipe.rename(sent / recipe.name)
    (sent / "agent.py").write_text(AGENT)
    played = 'explorer.workflow={use: "./agent.py:asks"}'
    run = [str(Path(sys.executable).with_name("rft")), "run", recipe.name, played, *PLACES]
    environment = json.dumps({"env_vars": {"PYTHONPATH": str(ROOT)}})
    submit = ["job", "submit", "--address", head.jobs, "--working-dir", str(sent)]
    with ThreadPoolExecutor(1) as waiting:
        job = waiting.submit(head.ray, *submit, "--runtime-env-json", environment, "--", *run)
        wait_for(lambda: checkpoint(tmp_path, 1).exists() or job.done(), 400)
        assert not job.done(), job.result().stdout + job.result().stderr
        conductor = int((tmp_path / "run" / "run.pid").read_text().split('"pid": ')[1].split(",")[0])
        os.kill(conductor, signal.SIGKILL)
        gate(tmp_path, 1).touch()
        wait_for(lambda: checkpoint(tmp_path, 2).exists() or job.done(), 400)
        assert not job.done(), job.result().stdout + job.result().stderr
        os.kill(rank_of_trainer(head), signal.SIGKILL)
        gate(tmp_path, 2).touch()
        done = job.result(400)
    assert done.returncode == 0, done.stdout + done.stderr
    check_books(tmp_path, steps=4)
    said = (tmp_path / "run" / "log.txt").read_text()
    assert "continuing from the checkpoint of step 1" in said
    assert "rank 1 of the trainer's 2 is gone" in said
    assert "continuing from the checkpoint of step 2" in said


def rank_of_trainer(head: Head) -> int:
    """The process of the newest rank 1, as it said itself."""
    logs = sorted(head.folder.glob("session_*/logs/worker-*.err"), key=lambda log: log.stat().st_mtime)
    said = [re.findall(r"rank 1 of the trainer is process (\d+)", log.read_text()) for log in logs]
    return int([pid for found in said for pid in found][-1])


@pytest.fixture
def apart() -> Iterator[None]:
    """This process is connected to no cluster, before and after."""
    ray = pytest.importorskip("ray")
    ray.shutdown()
    yield
    ray.shutdown()


@pytest.mark.heavy
@pytest.mark.usefixtures("apart")
def test_a_run_that_no_cluster_can_hold_is_refused_with_the_arithmetic(tmp_path: Path, head: Head) -> None:
    changes = [*PLACES, "placement.trainer.gpus=64", f"placement.address={head.address}"]
    recipe = load_recipe(write_recipe(tmp_path), changes)
    assert isinstance(recipe, OnlineRecipe)
    with pytest.raises(RecipeError, match=r"the roles can never start on this cluster \(too few GPUs"):
        conduct(recipe)


@ALONE
@pytest.mark.heavy
@pytest.mark.usefixtures("apart")
def test_operators_over_a_cluster_do_what_they_do_here(tmp_path: Path, head: Head) -> None:
    texts = [f"How many are {n} and {n % 7} apples" + "? " * (n % 5) + "!@#" * (n % 11) for n in range(120)]
    lines = [json.dumps({"question": text, "answer": f"#### {n}"}) for n, text in enumerate(texts * 2)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    recipe = tmp_path / "clean.yaml"
    recipe.write_text(CLEAN.format(root=tmp_path))
    found = {}
    for place, more in (("local", []), ("ray", [f"placement.address={head.address}"])):
        uri = f"{tmp_path}/{place}"
        report = curate(load_data_recipe(recipe, [f"buffer.uri={uri}", f"placement.use={place}", *more]))
        with Buffer(uri) as buffer:
            found[place] = ([{**op, "seconds": 0} for op in report["operators"]], buffer.tasks())
    assert found["ray"] == found["local"]
    assert [op["rows_in"] > op["rows_out"] > 0 for op in found["ray"][0]] == [False, True, True]


@ALONE
@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("apart")
def test_a_cluster_is_waited_for_and_a_node_that_is_lost_costs_its_groups_only(
    tmp_path: Path, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = RayPlacement("small", patience=Patience(nodes_s=0.5, place_s=0.5), address=head.address)
    with pytest.raises(StalledError, match=r"(?s)does not have:.*trainer +3 +2 +1.*add nodes") as caught:
        impatient.preflight([RoleSpec("trainer", "toy:toy", {}, cpus=3)])
    assert caught.value.exit_code == 75
    answer = Conductor().run(b"", str(tmp_path), [], "another")
    with pytest.raises(RftError, match=r"the conductor is on Ray node \w+; .* of node another"):
        decode_answer(answer)

    def placed(buffer: Buffer, hub: HubServer) -> RayPlacement:
        return RayPlacement("house", HubAccess(hub.address, hub.token), {}, Patience(), head.address)

    house = WholeRun(tmp_path, 0, staleness=2, groups=2, steps=10_000, placed=placed, extras=1)
    joined: list[subprocess.Popen[bytes]] = []

    def stop_requested() -> bool:
        """A node comes, an explorer joins on it, and the node is lost while it plays."""
        extra = [one for one in house.loop.exploring.fleet.members if one.extra]
        if not joined:
            joined.append(head.join("second", cpus=1))
        elif extra and extra[0].load and extra[0].stays:
            kill_node(joined[0])
        return joined[0].poll() is not None and not extra

    house.loop.stop_requested = stop_requested
    with pytest.raises(Stopped, match="stopped at step"):
        house.loop.run()
    groups = house.buffer.read("groups").to_pylist()
    assert {row["error"] for row in groups if row["outcome"] == "cancelled"} == {"its explorer died"}
    house.steps = house.loop.step
    house.check()
    house.close()


@ALONE
@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("apart")
def test_a_node_that_is_drained_costs_its_groups_only(
    tmp_path: Path, head: Head, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One explorer joins there; there is no room for a second one, which is asked for all the time."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(extras, "LEAVE_S", 1.0)
    caplog.set_level("INFO", logger="rft_data.loop.extras")
    made: list[RayPlacement] = []

    def placed(buffer: Buffer, hub: HubServer) -> RayPlacement:
        patience = Patience(close_s=5.0)
        made.append(RayPlacement("drained", HubAccess(hub.address, hub.token), {}, patience, head.address))
        return made[0]

    house = WholeRun(tmp_path, 0, staleness=2, groups=2, steps=10_000, placed=placed, extras=2)
    node: list[subprocess.Popen[bytes]] = []
    drained: list[str] = []

    def stop_requested() -> bool:
        """A node comes, is drained while an explorer plays on it, and ends; two steps later the run stops."""
        joined = [one for one in house.loop.exploring.fleet.members if one.extra]
        if not node:
            assert not made[0].drained()
            node.append(head.join("third", cpus=1))
        elif not drained and joined and joined[0].load:
            ids = [one["NodeID"] for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU") == 1]
            head.drain(*ids)
            assert made[0].drained() == {joined[0].role.name}
            drained.append(joined[0].role.name)
        elif drained and not joined and node[0].poll() is None:
            kill_node(node[0])
            house.steps = house.loop.step + 2
        return bool(drained) and node[0].poll() is not None and house.loop.step >= house.steps

    house.loop.stop_requested = stop_requested
    with pytest.raises(Stopped, match="stopped at step"):
        house.loop.run()
    assert caplog.text.count("leaves the run, its node is to be taken away (") == 1
    groups = house.buffer.read("groups").to_pylist()
    lost = [row["error"] for row in groups if row["outcome"] == "cancelled"]
    assert set(lost) == {"its explorer left"}
    assert len(lost) <= len(groups) // 2
    house.steps = house.loop.step
    house.check()
    house.close()
