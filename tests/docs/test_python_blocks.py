"""Python of the pages is run, over the run of tests/docs/conftest.py where it needs one."""

from __future__ import annotations

import inspect
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from explorers.sandbox.probe import probe
from rft_data.buffer import Buffer
from rft_data.core.errors import Stopped
from rft_data.core.groups import Assignment, GroupResult, Ticket
from rft_data.core.rows import TaskKey, WeightRef
from rft_data.core.words import SandboxKind
from rft_data.placement.hub import HubClient, HubServer
from tests.docs.blocks import run_block
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.test_client import annotations
from tests.rft_data.reading.test_search import tiny_sentence_model
from tests.rft_data.sampler.memory import MemoryLedger, MemoryVersions, result

pytestmark = pytest.mark.slow


@pytest.fixture
def stored(world: Path, tmp_path: Path) -> Iterator[Buffer]:
    """A copy of the run's buffer, of which this process is the owner."""
    shutil.copytree(world / "runs" / "shop" / "buffer", tmp_path / "buffer")
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


def test_the_page_of_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Buffer("runs/other") as other:
        other.append([make_experience(9)])
        table = other.read("experiences").drop_columns(["seq", "digest"])
    made = run_block("buffer.md", "done = buffer.append", rows=[make_experience(0)], table=table)
    assert list(made["done"].seqs) == [0]


def test_the_page_of_python(world: Path) -> None:
    made = run_block(
        "python.md",
        "rft.run_recipe",
        {
            "recipes/quickstart.yaml": "shop.yaml",
            '["seed=1"]': "[]",
            "runs/quickstart/buffer": "runs/shop/buffer",
            '"quickstart").plot': '"shop").plot',
            "1234": "0",
        },
    )
    assert made["summary"]["groups"]["trained"] == 6
    assert len(made["rates"]) > 0
    assert Path("out.parquet").stat().st_size > 0


def test_the_page_of_reading(stored: Buffer, world: Path, tmp_path: Path) -> None:
    where = run_block("reading.md", "parse_filter", {"runs/a/buffer": "runs/shop/buffer"})
    assert where["good"] == where["same"] == where["also"]
    where["buffer"].close()
    names = {"buffer": stored, "good": where["good"]}
    model = tiny_sentence_model(tmp_path / "model")
    run_block("reading.md", "index_text", {"sentence-transformers/all-MiniLM-L6-v2": str(model)}, **names)
    run_block("reading.md", "buffer.to_pandas", {"quickstart": "shop"}, **names)
    run_block("reading.md", "tag(buffer", {"other/buffer": str(tmp_path / "other")}, **names)
    with Buffer(tmp_path / "other", read_only=True) as branched:
        assert len(branched) == len(stored.read("experiences", ["seq"], where=where["good"]))


def test_the_page_of_monitoring(stored: Buffer, tmp_path: Path) -> None:
    steps: list[int] = []

    def train(step: int) -> float:
        steps.append(step)
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
        return 0.5

    with pytest.raises(Stopped, match="stopped at step 3 of 150, as asked"):
        run_block("monitoring.md", "RunControl(", run_dir=tmp_path / "run", buffer=stored, train=train)
    losses = stored.read("metrics", ["run_id", "key"]).to_pylist()
    assert losses.count({"run_id": "a", "key": "loss"}) == len(steps) == 3


def test_the_page_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's block is what the owner's `work()` waits for."""
    monkeypatch.chdir(tmp_path)
    rows = [make_experience(n) for n in (0, 1)]
    group = GroupResult(Ticket("run/g0", 0, 3), TaskKey("arith", "t0"), (1.0, 1.0), "arrived", 3, (0, 1))
    batches = []

    def work() -> None:
        hub: HubServer = inspect.stack()[1].frame.f_locals["hub"]
        with HubClient(hub.address, hub.token) as judge:
            judge.append(rows)
            judge.annotate(annotations(range(2)))
        client = {"address": hub.address, "token": hub.token, "rows": rows, "groups": [group]}
        batches.append(run_block("hub.md", "HubClient(address", **client, pipeline_hash="p")["batch"])

    run_block("hub.md", "HubServer(buffer)", work=work)
    assert batches[0].table["advantage"].to_pylist() == [[0.5], [0.5]]


def test_the_page_of_the_sampler(stored: Buffer) -> None:
    ledger, versions = MemoryLedger(), MemoryVersions()
    versions.issue(0)
    made = run_block(
        "sampler.md",
        "make_sampler(",
        ledger=ledger,
        versions=versions,
        buffer=stored,
        run_id="next",
        step=0,
        engine_version=0,
        play=result,
        train=lambda lease: versions.issue(lease.step + 1),
    )
    assert len(made["lease"].group_ids) == 32
    assert made["sampler"].conservation()["trained"] == 32


def test_the_page_of_the_sandbox() -> None:
    if why := probe(SandboxKind.LANDLOCK) and probe(SandboxKind.BUBBLEWRAP):
        pytest.skip(f"no sandbox of any kind: {why}")
    ran = run_block("sandbox.md", "Sandbox(choose")["ran"]
    assert (ran.end, ran.status, ran.stdout) == ("exited", 0, "hello\n")


def test_the_page_of_explorers(stored: Buffer, world: Path) -> None:
    newest = sorted((world / "runs" / "shop" / "weights").glob("v*"))[-1]
    version = json.loads((newest / "manifest.json").read_text())
    tasks = [
        Assignment(Ticket(f"r1/g-{n}", n, version["version"]), one) for n, one in enumerate(stored.tasks())
    ]
    made = run_block(
        "explorers.md",
        "role = explorer_role(",
        {
            '"vllm"': '"transformers"',
            "runs/r1/model": str(world / "runs" / "shop" / "model"),
            '"max_tokens": 48': '"max_tokens": 2',
        },
        buffer=stored,
        ref=WeightRef(version["run_id"], version["version"], version["step"], str(newest)),
        assignments=tasks[:2],
    )
    assert [(one.outcome, len(one.seqs)) for one in made["played"]] == [("arrived", 8)] * 2
    made["role"].close()


def test_the_page_of_the_page() -> None:
    board = run_block("page.md", "def board")["board"]
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "down"}]
    assert board({"messages": said}) == [{"turn": 1, "said": "down"}]
