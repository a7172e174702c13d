"""A whole small run whose tasks are curated as it goes on, stopped and continued."""

from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.checkpoint import newest
from rft_data.errors import RecipeError
from rft_data.modes import run_recipe
from rft_data.recipe import load_recipe
from tests.rft_data.test_online import RECIPE

UPKEEP = """\
task_upkeep:
  every: 2
  ops:
    - task_pass_rate_filter: {min_rollouts: 4, max_pass_rate: 0.95, min_pass_rate: 0.05}
  synthesis: {use: "recipes.arithmetic_variants:other_numbers", args: {count: 1}, parents: 2}
"""


def recipe(folder: Path, *overrides: str):
    text = RECIPE.format(root=folder, engine="transformers", steps=4)
    (folder / "recipe.yaml").write_text(text + UPKEEP)
    return load_recipe(folder / "recipe.yaml", list(overrides))


def test_upkeep_between_checkpoints_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, match="give a multiple of 'checkpoint_every'"):
        recipe(tmp_path, "task_upkeep.every=3")


@pytest.mark.slow
def test_a_run_retires_and_makes_tasks(tmp_path: Path):
    run_recipe(recipe(tmp_path))
    state = newest(tmp_path / "run" / "checkpoints").state["selector"]
    assert state["retired"]
    with Buffer(tmp_path / "run" / "buffer", read_only=True) as buffer:
        made = [task for task in buffer.tasks() if "synthesised" in task.tags]
        logged = buffer.read("metrics").to_pylist()
        known = set(buffer.read("experiences", ["experience_id"])["experience_id"].to_pylist())
    assert {(task.taskset, task.task_id) for task in made} == set(map(tuple, state["added"]))
    assert all(task.parent_experience_id in known for task in made)
    assert any(row["key"].endswith("tasks/retired") and row["value"] > 0 for row in logged)
