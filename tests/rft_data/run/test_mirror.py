"""Runs on an S3-compatible store: what is stored, who may, and a run that goes on with an empty disk."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.cli.app import app
from rft_data.cli.runs import move_aside
from rft_data.core import failpoints
from rft_data.core.errors import (
    BusyError,
    FencedError,
    IntegrityError,
    MissingFileError,
    RecipeError,
)
from rft_data.core.files import write_manifest
from rft_data.core.objects import Objects
from rft_data.core.rows import Task
from rft_data.core.scratch import working_folder
from rft_data.core.words import RunState, StopRequest
from rft_data.recipe import load_recipe
from rft_data.run.mirror import Mirror, mirror, run_folder, stop_run
from rft_data.run.record import STOP_FILE, RunRecord, standing, write_record
from rft_data.weights import checkpoint
from tests.rft_data.run.stored_runs import Node, files, write
from tests.rft_data.run.test_online import write_recipe
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
SHORT = [
    "~experts",
    "~evaluation",
    "explorer.reward=[{use: tests.rft_data.run.test_mirror:digits}]",
    "experience_ops=[{grpo_advantage_mapper: {}}]",
    "stages=[{algorithm: grpo, groups_per_step: 2, steps: 2, checkpoint_every: 1}]",
]
"""Changes for a run of two steps without a supervised stage."""


def digits(task: Task, text: str) -> float:
    """A reward that random weights get now and then."""
    return sum(letter.isdigit() for letter in text) / 8


def test_what_is_complete_reaches_an_empty_disk_and_nothing_else_does(url: str, node: Node) -> None:
    first = Mirror(url)
    write(first.folder, "weights/v1/model", "one")
    write(first.folder, "weights/.draft-v2/model", "half")
    write(first.folder, "checkpoints/checkpoint-1/model", "one")
    write_manifest(first.folder / "checkpoints" / "checkpoint-1", {})
    write(first.folder, "checkpoints/checkpoint-2/model", "no manifest yet")
    write(first.folder, "hub.json", "a secret")
    first.save()
    keys = Objects(url).keys_below("objects")
    write(first.folder, "weights/v2/model", "two")
    shutil.rmtree(first.folder / "weights" / "v1")
    shutil.rmtree(first.folder / "checkpoints" / "checkpoint-1")
    first.save()
    assert len(Objects(url).keys_below("objects")) < len(keys), "what is gone stays stored"
    write(first.folder, "log.txt", "after the last save")  # as after a kill

    node.go("b")
    second = Mirror(url)
    assert files(second.folder) == {"weights/v2/model": "two"}
    second.close()

    node.go("a")
    first.close()
    again = Mirror(url)  # what was not stored is no part of the run
    assert files(again.folder) == files(second.folder) | {
        "checkpoints/checkpoint-2/model": "no manifest yet",
        "hub.json": "a secret",
    }
    assert not (again.folder / "weights" / "v1").exists()
    again.close()


def test_an_owner_that_was_replaced_stores_and_deletes_nothing(url: str, node: Node) -> None:
    first = Mirror(url)
    write(first.folder, "weights/v1/model", "one")
    first.save()
    with pytest.raises(BusyError, match="is at work on this machine"):
        Mirror(url)
    node.go("b")
    second = Mirror(url)
    write(second.folder, "weights/v2/model", "two")
    second.save()
    node.go("a")
    shutil.rmtree(first.folder / "weights" / "v1")
    write(first.folder, "weights/v2/model", "another two")
    with pytest.raises(FencedError, match="taken over by another process"):
        first.save()
    first.close()
    second.close()
    node.go("c")
    third = Mirror(url)  # which also deletes what the first one put and nobody lists
    assert files(third.folder) == {"weights/v1/model": "one", "weights/v2/model": "two"}
    third.close()
    assert len(Objects(url).keys_below("objects")) == 3, "two files and their listing"


@pytest.mark.parametrize("at", ["mirror.stored", "mirror.listed"])
def test_a_save_that_is_broken_off_is_whole_or_absent(url: str, node: Node, at: str) -> None:
    first = Mirror(url)
    write(first.folder, "weights/v1/a", "one")
    first.save()
    write(first.folder, "weights/v2/a", "two")
    write(first.folder, "weights/v2/b", "three")
    with failpoints.armed(at, 1), pytest.raises(OSError, match=at):
        first.save()
    first._lock.release()
    node.go("b")
    second = Mirror(url)
    new = {"weights/v2/a": "two", "weights/v2/b": "three"} if at == "mirror.listed" else {}
    assert files(second.folder) == {"weights/v1/a": "one"} | new
    second.close()


def test_an_object_that_is_not_what_was_stored_is_refused(url: str, node: Node, tmp_path: Path) -> None:
    first = Mirror(url)
    write(first.folder, "weights/v1/a", "one")
    first.save()
    [stored] = first._stored.values()
    Objects(url).put(write(tmp_path, "other", "ONE"), stored.key)
    first.close()
    node.go("b")
    with pytest.raises(IntegrityError, match="is damaged: it is not what was stored"):
        Mirror(url)


@pytest.mark.heavy
def test_a_run_goes_on_with_an_empty_disk(url: str, node: Node, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="holds no run"):
        run_folder(url)
    stored = [*SHORT, f"run_dir={url}", f"buffer.uri={url}/buffer"]
    killed = subprocess.run(
        [sys.executable, "-m", "rft_data.cli.app", "run", str(write_recipe(tmp_path)), *stored],
        env={**os.environ, "RFT_FAILPOINT": "checkpoint.written:2:kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    node.go("b")
    rft = CliRunner()
    seen = json.loads(rft.invoke(app, ["status", url, "--json"]).stdout)
    assert (seen["run_dir"], seen["checkpoint"][0]) == (url, 1)
    assert seen["standing"]["state"] in ("running", "died")  # it wrote its record less than 90 s ago, or more
    with failpoints.armed("step.begin", 99) as steps:
        done = rft.invoke(app, ["resume", url, "--take-over"])
    assert (done.exit_code, steps.passes) == (0, 1), done.output
    assert checkpoint.newest(working_folder(url) / "checkpoints").step == 2
    node.go("c")
    assert json.loads(rft.invoke(app, ["status", url, "--json"]).stdout)["standing"]["state"] == "finished"
    assert "step 1/2" in rft.invoke(app, ["logs", url]).stdout


def test_a_run_on_a_store_needs_its_buffer_there_and_is_not_moved_aside(tmp_path: Path) -> None:
    path, place = write_recipe(tmp_path), "run_dir=s3://bucket/run"
    with pytest.raises(RecipeError, match=r"give buffer.uri: s3://bucket/run/buffer"):
        load_recipe(path, [place])
    recipe = load_recipe(path, [place, "buffer.uri=s3://bucket/run/buffer"])
    with pytest.raises(RecipeError, match="an object store cannot rename s3://bucket/run"):
        move_aside(recipe)


def test_a_run_is_seen_and_stopped_from_another_machine(
    url: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "BEAT_S", 0.05)
    first, now = Mirror(url), time.time()
    record = RunRecord(7, "a", 0, now, RunState.RUNNING, now)
    write_record(first.folder, record, durable=False)
    first.start()
    node.go("b")
    assert standing(run_folder(url)).alive
    assert "process 7 on a is asked to stop" in stop_run(url, now=False)
    wait_for((first.folder / STOP_FILE).exists)
    assert (first.folder / STOP_FILE).read_text() == StopRequest.DRAIN
    write_record(first.folder, replace(record, beat_at=now - 100), durable=False)
    wait_for(lambda: not standing(run_folder(url)).alive)  # it stored nothing for long enough
    assert "nothing to stop" in stop_run(url, now=True)
    first.close()
