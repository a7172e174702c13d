"""Runs on a Ray cluster that others started: submitted to it as a job, while nodes join and leave it."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError
from rft_data.recipe import load_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.run.conductor import conduct
from tests.ray_head import Head, ray_head
from tests.rays import ray_for
from tests.rft_data.run.test_online import (
    ROOT,
    check_books,
    checkpoint,
    gate,
    write_gated,
    write_recipe,
)
from tests.waiting import wait_for

PLACES = [
    "placement.use=ray",
    "placement.explorers={count: 2, cpus: 0.5}",
    "placement.trainer={cpus: 0.5}",
]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head(cpus=2) as started:
        yield started


@pytest.mark.slow
@pytest.mark.timeout(900)  # minutes of CPU time, beside whatever else the machine does
def test_a_submitted_run_keeps_every_book_and_survives_its_conductor(tmp_path: Path, head: Head) -> None:
    recipe, sent = write_gated(tmp_path, 2), tmp_path / "sent"
    sent.mkdir()
    recipe.rename(sent / recipe.name)
    run = [str(Path(sys.executable).with_name("rft")), "run", recipe.name, *PLACES]
    environment = json.dumps({"env_vars": {"PYTHONPATH": str(ROOT)}})
    submit = ["job", "submit", "--address", head.jobs, "--working-dir", str(sent)]
    with ThreadPoolExecutor(1) as waiting:
        job = waiting.submit(head.ray, *submit, "--runtime-env-json", environment, "--", *run)
        wait_for(lambda: checkpoint(tmp_path, 2).exists() or job.done(), 400)
        assert not job.done(), job.result().stdout + job.result().stderr
        conductor = int((tmp_path / "run" / "run.pid").read_text().split('"pid": ')[1].split(",")[0])
        os.kill(conductor, signal.SIGKILL)
        gate(tmp_path, 2).touch()
        done = job.result(400)
    assert done.returncode == 0, done.stdout + done.stderr
    check_books(tmp_path, steps=4)
    assert "continuing from the checkpoint of step 2" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_that_no_cluster_can_hold_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path), [*PLACES, "placement.trainer.gpus=64"])
    assert isinstance(recipe, OnlineRecipe)
    with (
        ray_for(num_cpus=2, object_store_memory=256 << 20),
        pytest.raises(RecipeError, match=r"the roles can never start on this cluster \(too few GPUs"),
    ):
        conduct(recipe)
