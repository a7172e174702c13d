"""What a recipe says about worlds: workflows by name, tasks that choose one, rewards left to the world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import Task
from rft_data.recipe import load_recipe
from rft_data.recipe.tasksets import Experts
from rft_data.run.experts import expert_rows
from rft_data.run.task_setup import read_tasks

ROOT = Path(__file__).parents[3]
LAKE = ROOT / "recipes" / "frozen_lake.yaml"
CHOICE = "explorer.workflows={lake: {use: environment, args: {environment: FrozenLake-v1}}}"


@pytest.fixture
def buffer(tmp_path: Path) -> Any:
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


@pytest.mark.slow
def test_a_taskset_names_the_workflow_of_its_tasks(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_recipe(LAKE, [CHOICE, "tasks.0.workflow=lake"])
    assert recipe.explorer.workflows["lake"].use == "environment"
    tasks = read_tasks(recipe, ["train"], buffer)
    assert {task.workflow for task in tasks.all} == {"lake"}
    with pytest.raises(RecipeError, match=r"ask for the workflows \['leak'\].*\['environment', 'lake'\]"):
        read_tasks(load_recipe(LAKE, [CHOICE, "tasks.0.workflow=leak"]), ["train"], buffer)


def test_older_recipes_keep_their_hash() -> None:
    saved = load_recipe(LAKE).saved()
    assert "workflows" not in saved["explorer"]
    assert "workflow" not in saved["tasks"][0]


def test_a_world_decides_where_the_recipe_has_no_reward() -> None:
    assert load_recipe(LAKE).explorer.decided_by == "world"
    assert load_recipe(ROOT / "recipes" / "calculator.yaml").explorer.decided_by == "exact_answer"
    with pytest.raises(RecipeError, match="the workflow 'single_turn' has none of its own"):
        load_recipe(LAKE, ["explorer.workflow={use: single_turn}"])
    with pytest.raises(RecipeError, match="workflow 'toools' is not known; did you mean 'tools'"):
        load_recipe(LAKE, ["explorer.workflows={one: {use: toools}}"])


def solved(task: Task) -> Any:
    """An expert for the tests."""
    return task.metadata["solution"]


@pytest.mark.parametrize(
    ("solution", "said"),
    [
        ("#### 4", [{"role": "assistant", "content": "#### 4"}]),
        (
            [{"role": "assistant", "content": "2+2"}, {"role": "tool", "content": "4"}],
            None,
        ),
        (
            [{"role": "tool", "content": "4"}, {"role": "assistant", "content": "#### 4"}],
            [{"role": "tool", "content": "4"}, {"role": "assistant", "content": "#### 4"}],
        ),
        ([], None),
        (4, None),
        (["#### 4"], None),
    ],
)
def test_an_expert_gives_a_text_or_messages_that_end_with_an_answer(solution: Any, said: Any) -> None:
    section = Experts(use=f"{__file__}:solved", limit=1, tasksets=["sums"])
    task = Task("sums", ({"role": "user", "content": "2+2"},), metadata={"solution": solution})
    if said is None:
        with pytest.raises(RowError, match="wanted a text, or messages that end with an assistant's"):
            expert_rows(section, 0, [task], "run")
        return
    (row,) = expert_rows(section, 0, [task], "run")
    assert list(row.messages) == [*task.messages, *said]
    assert (row.prompt_messages, row.completion_text) == (1, "#### 4")
