"""What runs over several nodes of a network, which have no folder in common; see tests/cluster/nodes.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rft_data.core.files import file_digest
from rft_data.core.words import HubRole
from rft_data.placement.hub.access import make_token
from tests.cluster.nodes import HOME, RAY_PORT, Nodes, nodes_of
from tests.rft_data.run.test_adapter_run import LORA
from tests.rft_data.run.test_online import RECIPE, check_books
from tests.waiting import wait_for

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

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
SERVE_RUN = """
import sys, time
from pathlib import Path
from rft_data.buffer import Buffer
from rft_data.placement.hub import HubServer
from rft_data.placement.hub.run_files import RunFolders
model = Path("model")
model.mkdir()
(model / "config.json").write_text("{}")
(model / "weights.bin").write_bytes(bytes(range(256)) * (80 << 10))  # 20 MiB: two parts
folders = RunFolders(Path("of-run"), [model])
with Buffer("files-buffer") as buffer, HubServer(
    buffer, host=sys.argv[1], token=sys.argv[2], folders=folders
) as hub:
    print(hub.address, flush=True)
    time.sleep(1000)
"""
COPY = """
import sys
from pathlib import Path
from rft_data.core.errors import ConflictError, MissingFileError
from rft_data.core.files import file_digest
from rft_data.placement.hub import HubClient
from rft_data.placement.hub.node_files import node_files
model, version = Path("model").absolute(), Path("of-run/weights/v1").absolute()
with HubClient(sys.argv[1], sys.argv[2]) as client:
    files = node_files(client)
    print("shared", files.shared)
    files.fetch(model)
    print("model", sorted(path.name for path in model.iterdir()), file_digest(model / "weights.bin"))
    made = (model / "weights.bin").stat().st_mtime_ns
    files.fetch(model)
    print("again", (model / "weights.bin").stat().st_mtime_ns == made)
    (model / "config.json").write_text("changed")
    files.fetch(model)
    print("mended", (model / "config.json").read_text())
    model.unlink()
    model.mkdir()
    (model / "config.json").write_text("the user's own")
    try:
        files.fetch(model)
    except ConflictError as err:
        said = "holds other files than on the run's node" in str(err)
        print("own", said, (model / "config.json").read_text())
    try:
        files.fetch(version)
    except MissingFileError as err:
        print("none", "the run has no files in" in str(err))
    version.mkdir(parents=True)
    (version / "a.safetensors").write_bytes(b"x" * (17 << 20))
    (version / "manifest.json").write_text("[]")
    files.send(version)
    files.send(version)
    print("sent", file_digest(version / "a.safetensors"))
"""
READ = """
import sys
from rft_data.placement.hub import HubClient
with HubClient(sys.argv[1], sys.argv[2]) as client:
    rows = client.read("experiences", ["seq", "experience_id"]).to_pydict()
    print(len(rows["seq"]), len(set(rows["seq"])), len(set(rows["experience_id"])), max(rows["seq"]))
"""


CPUS = (0, 2, 1)
"""Of each node."""
SPREAD = [
    "placement.use=ray",
    "placement.explorers={count: 2, cpus: 0.5}",
    "placement.trainer={cpus: 2}",
]
"""By the CPUs that the nodes say they have, the trainer fits the second only, the explorers the third."""


LONG = pytest.mark.skipif(
    os.environ.get("RFT_TEST_NODES") != "1", reason="no node is lost in a run: that takes three minutes"
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with nodes_of(3) as made:
        yield made


def test_cut_network_loses_and_doubles_nothing(nodes: Nodes) -> None:
    cut_s = float(os.environ.get("RFT_TEST_CUT_S", "3"))
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
    assert sender.wait(200) == 0
    reader = make_token(SECRET, HubRole.READER, "reader")
    stored = away.run(sys.executable, "-c", READ, address, reader).split()
    assert stored == ["400", "400", "400", "399"]
    assert sorted(map(int, acknowledged())) == list(range(400))


def test_folders_are_copied_to_a_node_and_handed_in_from_there(nodes: Nodes) -> None:
    home, away = nodes[0], nodes[1]
    home.start(sys.executable, "-c", SERVE_RUN, home.address, SECRET, log="hub-of-run")
    wait_for(lambda: "hub://" in home.file("hub-of-run").read_text())
    address = home.file("hub-of-run").read_text().strip()
    learner = make_token(SECRET, HubRole.LEARNER, "trainer")
    said = dict(
        line.split(" ", 1)
        for line in away.run(sys.executable, "-c", COPY, address, learner, within_s=120).splitlines()
    )
    there = file_digest(home.file("model/weights.bin"))
    assert said == {
        "shared": "False",
        "model": f"['config.json', 'weights.bin'] {there}",
        "again": "True",
        "mended": "{}",
        "own": "True the user's own",
        "none": "True",
        "sent": file_digest(home.file("of-run/weights/v1/a.safetensors")),
    }


@pytest.fixture(scope="module")
def cluster(nodes: Nodes) -> str:
    """The address of a Ray cluster over the three nodes; the first has no CPU for roles."""
    home = nodes[0]
    home.start_ray(cpus=0)
    with ThreadPoolExecutor() as joining:
        list(joining.map(lambda place: nodes[place].start_ray(home, cpus=CPUS[place]), (1, 2)))
    return f"{home.address}:{RAY_PORT}"


def started_run(
    nodes: Nodes, cluster: str, folder: str, *changes: str, steps: int
) -> subprocess.Popen[bytes]:
    """`rft run` on the first node, in `folder` of its home; its output is in `folder`.out there.

    `changes`: of the recipe.
    """
    home = nodes[0]
    home.file(folder).mkdir()
    recipe = RECIPE.format(root=f"{HOME}/{folder}", engine="transformers", steps=steps)
    home.file(f"{folder}.yaml").write_text(recipe)
    rft = [str(Path(sys.executable).with_name("rft")), "run", f"{folder}.yaml"]
    return home.start(*rft, *SPREAD, *changes, log=f"{folder}.out", RAY_ADDRESS=cluster)


def ended(nodes: Nodes, run: subprocess.Popen[bytes], folder: str) -> None:
    """Wait for a run in `folder` to end well; else the test fails with what the run said until then."""
    try:
        code = run.wait(400)
    except subprocess.TimeoutExpired as late:
        log = nodes[0].file(f"{folder}/run/log.txt")
        late.add_note(nodes[0].file(f"{folder}.out").read_text())
        late.add_note(log.read_text() if log.exists() else "the run has no log yet")
        raise
    assert code == 0, nodes[0].file(f"{folder}.out").read_text()


def copied_run(nodes: Nodes, folder: str, to: Path) -> str:
    """Copy a run's folder out of the first node, and return its log."""
    shutil.copytree(nodes[0].file(f"{folder}/run"), to / "run")
    return (to / "run" / "log.txt").read_text()


def test_run_over_three_nodes_without_a_common_folder(nodes: Nodes, cluster: str, tmp_path: Path) -> None:
    _, second, third = nodes.all
    run = started_run(nodes, cluster, "spread", steps=2)
    ended(nodes, run, "spread")
    said = copied_run(nodes, "spread", tmp_path)
    check_books(tmp_path, steps=2)
    assert second.file("spread/run/checkpoints/checkpoint-2/trainer_state.json").is_file()
    assert third.file("spread/run/.model.copied").is_file()
    assert not any(node.file("spread/run/buffer").exists() for node in (second, third))
    assert not third.file("spread/run/weights").exists(), "weights came by the wire"
    assert "weights reach the explorers by 'ray': explorers may be on nodes" in said
    assert "Ray sends what it carries between its 3 nodes in clear" in said


@LONG
def test_engine_over_two_devices_is_sent_weights_on_a_node_without_the_folder(
    nodes: Nodes, cluster: str, tmp_path: Path
) -> None:
    wide = ["explorer.engine.use=vllm", "explorer.engine.options={tensor_parallel_size: 2}"]
    run = started_run(nodes, cluster, "wide", *wide, "placement.explorers.count=1", steps=2)
    ended(nodes, run, "wide")
    said = copied_run(nodes, "wide", tmp_path)
    check_books(tmp_path, steps=2)
    assert not nodes[2].file("wide/run/weights").exists(), "weights came by the wire"
    assert "weights reach the explorers by 'ray'" in said


@LONG
def test_run_of_adapters_goes_on_when_the_killed_node_of_its_explorers_is_back(
    nodes: Nodes, cluster: str, tmp_path: Path
) -> None:
    home = nodes[0]
    run = started_run(nodes, cluster, "killed", LORA, "explorer.engine.transport.use=gloo", steps=12)
    log = home.file("killed/run/log.txt")
    reached = home.file("killed/run/checkpoints/checkpoint-2/trainer_state.json")
    wait_for(lambda: reached.is_file() or run.poll() is not None, 300)
    nodes[2].kill()
    assert run.poll() is None, home.file("killed.out").read_text()
    wait_for(lambda: "is started again" in log.read_text() or run.poll() is not None, 120)
    nodes.add(3)
    nodes[2].start_ray(home, cpus=CPUS[2])
    ended(nodes, run, "killed")
    said = copied_run(nodes, "killed", tmp_path)
    assert said.count("is started again") >= 2, "both explorers were there"
    check_books(tmp_path, steps=12)
    assert nodes[2].file("killed/run/stages/0-sft/model.safetensors").is_file(), "the adapters' base"
    assert not nodes[2].file("killed/run/weights").exists()
    rft = str(Path(sys.executable).with_name("rft"))
    books = subprocess.run([rft, "buffer", "books", str(tmp_path / "run" / "buffer")], check=False)
    assert books.returncode == 0
