"""A synchronous run killed again and again ends with the weights and the books of one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from tests.rft_data.test_online import ROOT, check_books, grants, write_recipe

KILLS = (
    "explore.started:2",  # rows are stored, nobody has looked at them
    "judge.annotated:1",  # operators have judged, the groups are not closed
    "lease.granted:1",
    "step.done:1",  # the optimizer step is taken, its weights are nowhere
    "publish.renamed:2",
    "checkpoint.written:1",
    "settle.consume:2",  # the checkpoint is complete, its consumption is not written down
)
STEPS = 5


def rft(*command: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"RFT_FAILPOINT": f"{failpoint}:kill"} if failpoint else {})}
    script = str(Path(sys.executable).with_name("rft"))
    return subprocess.run(
        [script, *command], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )


def trained(root: Path) -> list[list[tuple]]:
    """Per step, what it was trained on."""
    with Buffer(root / "run" / "buffer", read_only=True) as buffer:
        rows = {row["seq"]: row for row in buffer.read("experiences").to_pylist()}
        leases = sorted(grants(buffer), key=lambda lease: lease["step"])
    names = ("task_id", "member", "token_ids", "logprobs", "reward")
    return [[tuple(str(rows[seq][name]) for name in names) for seq in lease["seqs"]] for lease in leases]


@pytest.mark.slow
def test_a_run_killed_at_every_stage_of_a_step_ends_with_the_weights_of_a_straight_one(
    tmp_path: Path,
) -> None:
    changes = ["stages.1.checkpoint_every=1"]
    roots = {}
    for name in ("straight", "killed"):
        roots[name] = tmp_path / name
        roots[name].mkdir()
        write_recipe(roots[name], steps=STEPS)
    straight = rft("run", str(roots["straight"] / "small.yaml"), *changes)
    assert straight.returncode == 0, straight.stderr
    command = ["run", str(roots["killed"] / "small.yaml"), *changes]
    for kill in KILLS:
        done = rft(*command, failpoint=kill)
        assert done.returncode == -signal.SIGKILL, f"{kill}: {done.stderr}"
    last = rft(*command)
    assert last.returncode == 0, last.stderr
    assert trained(roots["killed"]) == trained(roots["straight"])
    weights = [
        (root / "run" / "checkpoints" / f"checkpoint-{STEPS}" / "model.safetensors").read_bytes()
        for root in roots.values()
    ]
    assert weights[0] == weights[1]
    check_books(roots["straight"], steps=STEPS)
