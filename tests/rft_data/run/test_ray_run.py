"""A whole run on a local Ray cluster: two explorers, a trainer and the conductor as actors."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError
from rft_data.recipe import load_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.run.conductor import conduct
from tests.rays import ray_for
from tests.rft_data.run.test_online import (
    ROOT,
    WITH_TESTS,
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


@pytest.mark.slow
@pytest.mark.timeout(900)  # minutes of CPU time, beside whatever else the machine does
def test_a_run_on_ray_keeps_every_book_and_survives_its_conductor(tmp_path: Path) -> None:
    recipe, log = write_gated(tmp_path, 2), tmp_path / "log"
    command = [str(Path(sys.executable).with_name("rft")), "run", str(recipe), *PLACES]
    with log.open("w") as out:
        run = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env=WITH_TESTS)
        wait_for(lambda: checkpoint(tmp_path, 2).exists() or run.poll() is not None, 400)
        assert run.poll() is None, log.read_text()
        conductor = int((tmp_path / "run" / "run.pid").read_text().split('"pid": ')[1].split(",")[0])
        assert conductor != run.pid
        os.kill(conductor, signal.SIGKILL)
        gate(tmp_path, 2).touch()
        try:
            assert run.wait(400) == 0, log.read_text()
        finally:
            run.kill()
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
