"""How many explorers a run is asked to have."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.cli.app import app
from rft_data.core.errors import RecipeError
from rft_data.recipe import load_recipe
from rft_data.run.folder import Run
from rft_data.run.scaling import SCALE_FILE, ask_for_explorers, explorers_asked
from tests.rft_data.run.test_online import write_recipe

RANGE = ["placement.use=local", "placement.explorers.count={min: 1, max: 3}"]


@pytest.mark.slow
def test_a_range_of_explorers_is_asked_for_within_it(tmp_path: Path) -> None:
    run = Run(load_recipe(write_recipe(tmp_path), RANGE))
    run.begin()
    run.close()
    folder = tmp_path / "run"
    assert json.loads((folder / "recipe.json").read_text())["placement"]["explorers"]["count"] == {
        "min": 1,
        "max": 3,
    }
    assert explorers_asked(folder) is None
    done = CliRunner().invoke(app, ["scale", str(folder), "2"])
    assert (done.exit_code, explorers_asked(folder)) == (0, 2), done.output
    with pytest.raises(RecipeError, match=r"may have 1 to 3 explorers .* and 4 were asked for"):
        ask_for_explorers(folder, 4)
    (folder / SCALE_FILE).write_text("two")
    assert explorers_asked(folder) is None


def test_a_number_of_explorers_does_not_change(tmp_path: Path) -> None:
    run = Run(load_recipe(write_recipe(tmp_path)))
    run.begin()
    run.close()
    with pytest.raises(RecipeError, match=r"'placement.explorers.count' 1, which does not change"):
        ask_for_explorers(tmp_path / "run", 2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["placement.explorers.count={min: 3, max: 2}"], "'max' 2 is less than 'min' 3"),
        (["placement.explorers.count={min: 1, max: 2}"], "'explorers.count' is a range with 'use: inline'"),
        (["placement.address=auto"], "'address' is about a Ray cluster, and 'use' is 'inline'"),
        (["placement.use=local", "placement.wait_s=5"], "'wait_s' is about a Ray cluster"),
    ],
    ids=str,
)
def test_places_that_cannot_be_are_refused(tmp_path: Path, changes: list[str], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        load_recipe(write_recipe(tmp_path), changes)
