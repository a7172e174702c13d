"""The environment of verifiers that a shipped recipe plays: sums, and a rubric that looks at the answer."""

from pathlib import Path

import pytest

from recipes.sums_environment import right_sum
from rft_data.core.words import Split
from rft_data.recipe.copying import copy_recipe
from rft_data.recipe.kinds import with_tasks
from rft_data.recipe.load import load_recipe
from rft_data.run.build import taskset_tasks


@pytest.mark.slow
def test_a_copy_of_the_recipe_has_the_sums_and_holds_an_eighth_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = copy_recipe("sums_verifiers", tmp_path)[0]
    recipe = with_tasks(load_recipe(path, ["tasks.0.source.args={size: 80}"]))
    assert recipe is not None
    tasks = taskset_tasks(recipe.tasks[0])
    held = [task for task in tasks if task.split == Split.HELDOUT]
    assert (len(tasks) > 60, len(held)) == (True, -(-len(tasks) // 8))
    asked = str(tasks[0].messages[-1]["content"])
    assert asked.endswith("=")
    assert str(eval(asked.rpartition(": ")[2].rstrip("= "))) == tasks[0].answer  # noqa: S307 - our own sum


@pytest.mark.parametrize(
    ("said", "reward"), [("4+3=7; 7-5=2 #### 2", 1.0), ("#### 3", 0.0), ("2", 0.0), ("#### 2 or 3", 0.0)]
)
def test_the_rubric_wants_the_right_number_after_the_mark(said: str, reward: float) -> None:
    assert right_sum([{"role": "assistant", "content": said}], "2") == reward
