"""A whole small run whose tasks are curated as it goes on; and what a recipe lets in."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from rft_data.run.task_setup import task_curator
from rft_data.tasks.selectors.make import make_selector
from rft_data.weights.checkpoint import newest
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.test_online import RECIPE
from tests.rft_data.tasks.conftest import make_tasks

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


@pytest.mark.slow
def test_upkeep_between_checkpoints_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, match="give a multiple of 'checkpoint_every'"):
        recipe(tmp_path, "task_upkeep.every=3")


def held_out_and_new(task: Task, experiences, rng) -> list[Task]:
    """The first of the held-out tasks, as a training task, and one that nobody has."""
    return [*make_tasks(1), replace(task, messages=({"role": "user", "content": "What is 9 plus one?"},))]


@pytest.mark.slow
@pytest.mark.parametrize("ops", ["[]", "[{text_length_filter: {min_len: 1}}]"])
@pytest.mark.parametrize("tags", [(), ("synthesised",)])
def test_no_held_out_task_is_made_a_training_task(
    tmp_path: Path, buffer: Buffer, ops: str, tags: tuple[str, ...]
):
    maker = "tests.rft_data.run.test_task_upkeep:held_out_and_new"
    changed = f"task_upkeep.synthesis={{use: '{maker}', parents: 1}}"
    read = recipe(tmp_path, f"task_ops={ops}", changed)
    first, train = make_tasks(2)
    held_out = replace(first, split="heldout", tags=tags)
    buffer.add_tasks([train, held_out])
    [wanted] = [task for task in held_out_and_new(train, [], None) if task.key != held_out.key]
    named = {"run_id": read.name, "taskset": train.taskset, "task_id": train.task_id}
    rows = [make_experience(n, group_id="g", member=n, reward=float(n), **named) for n in range(2)]
    group = {
        "group_id": "g",
        "ordinal": 0,
        "round": 0,
        "attempt": 0,
        "version": 0,
        "version_min": 0,
        "outcome": "arrived",
        "rewards": [0.0, 1.0],
        "seqs": list(buffer.append(rows).seqs),
        "dropped_by": "",
        "error": "",
    }
    buffer.add_rows("groups", [{**group, **named}])
    selector, known = make_selector("shuffle", {}, [train], 0), {train.key: train}
    with closing(task_curator(read, read.task_upkeep, selector, known, [held_out], buffer)) as curator:
        assert curator.curate(2).added == (wanted.key,)
    assert held_out.key not in known


@pytest.mark.heavy
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
