"""`python -m pytest` in this folder: the reward does what it says, and the recipe is valid."""

from pathlib import Path

import pytest
from reward import score, shown

import rft_data

HERE = Path(__file__).parent
TASK = rft_data.Task(taskset="sums", messages=({"role": "user", "content": "What is 3 + 4?"},), answer="7")


@pytest.mark.parametrize(
    ("completion", "value"),
    [("It is 7", 1.0), ("3 + 4 = 7", 1.0), ("It is 8", 0.1), ("I do not know", 0.0), ("", 0.0)],
)
def test_score_is_by_the_last_number(completion: str, value: float) -> None:
    assert score(TASK, completion) == value


def test_what_is_shown_gets_the_full_reward() -> None:
    assert score(TASK, shown(TASK)) == 1.0


def test_recipe_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    assert rft_data.load_recipe(HERE / "recipe.yaml").mode == "online"
