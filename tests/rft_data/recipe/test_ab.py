"""Which recipes can have an A/B test of their weights; a refusal names field, found and wanted."""

from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError
from rft_data.recipe.load import load_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.recipe import Recipe
from tests.rft_data.run.test_served_run import recipe

AB = (
    "ab={behind: 2, share: 0.1}",
    "placement={use: local, explorers: {count: 2}}",
    "sync={every: 1, max_staleness: 2}",
)


def loaded(folder: Path, *changes: str) -> Recipe:
    return load_recipe(recipe(folder), [*AB, *changes])


@pytest.mark.slow
def test_a_recipe_with_two_explorers_can_have_one(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    assert isinstance(found, OnlineRecipe)
    assert found.ab is not None
    assert (found.ab.behind, found.ab.share) == (2, 0.1)
    without = load_recipe(recipe(tmp_path))
    assert "ab" not in without.saved(), "records of recipes without one stay as they were"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("placement.explorers.count=1", "'placement.explorers.count' is 1; give a fixed number, 2 or more"),
        ("placement.explorers.count={min: 2, max: 3}", "is from 2 to 3; give a fixed number, 2 or more"),
        ("placement={use: inline, explorers: {count: 2}}", "'placement.use' is 'inline'; give .*use: local"),
        ("placement={use: ray, explorers: {count: 2}}", "'placement.use' is 'ray'; give .*use: local"),
        ("ab.behind=0", r"ab\.behind: found 0; .*greater than or equal to 1"),
        ("ab.behind=3", "'ab.behind' is 3, .* 'sync.max_staleness' 2 .*; give max_staleness of 3 or more"),
        ("sync={every: 2, max_staleness: 4}", "up to 5 steps old .*'sync.every' 2.*max_staleness of 5"),
        ("ab.share=0", r"ab\.share: found 0; .*greater than 0"),
        ("ab.share=1", r"ab\.share: found 1; .*less than 1"),
        ("ab.share=.nan", r"ab\.share"),
        ("ab.weights=1", r"ab\.weights"),
        ("evaluation={limit: 4}", "'evaluation' measures the newest .*; remove one of the two"),
        (
            "tasks.0={name: sums, source: {use: reasoning_gym, dataset: chain_sum, size: 4}}",
            "taskset 'sums' has the source 'reasoning_gym'",
        ),
        (
            "tasks.0={name: sums, source: {use: reasoning_gym, dataset: chain_sum, size: 4}, workflow: own}",
            "taskset 'sums' has the source 'reasoning_gym' and the workflow 'own'",
        ),
    ],
)
def test_what_cannot_have_one_is_refused(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){message}") as refused:
        loaded(tmp_path, change)
    assert len(str(refused.value).splitlines()) == 2, "one error"


def test_a_workflow_that_serves_nobody_is_refused(tmp_path: Path) -> None:
    changes = (
        "tasks=[{name: sums, source: {use: reasoning_gym, dataset: chain_sum, size: 4}}]",
        "explorer.workflow={use: single_turn}",
        "explorer.reward=[{use: exact_answer}]",
    )
    with pytest.raises(RecipeError, match=r"'explorer.workflow.use' is 'single_turn'; give"):
        loaded(tmp_path, *changes)


@pytest.mark.parametrize("mode", ["explore", "train", "offline", "eval"])
def test_other_modes_do_not_have_one(tmp_path: Path, mode: str) -> None:
    with pytest.raises(RecipeError, match="ab: unknown key"):
        loaded(tmp_path, f"mode={mode}")
