"""The example of docs/own.md is whole: its files, saved under the names it gives, are a run."""

import json
import re
from pathlib import Path

import pytest

from explorers.rewards.registry import make_reward
from rft_data.buffer import Buffer
from rft_data.core.rows import Task
from rft_data.recipe.load import load_run_recipe, validate_recipe
from rft_data.run.start import run_recipe
from tests.docs.blocks import python_blocks
from trainers.models.tiny_model import build_tiny_model

DOCS = Path(__file__).parents[2] / "docs"
FILES = dict(re.findall(r"^`([\w.]+)`: .*?```\w+\n(.*?)```", (DOCS / "own.md").read_text(), re.M | re.S))
_ACCEPTED = re.search(r"### What is accepted\n\n.*?\n\n(\|.*?)\n\n", (DOCS / "rewards.md").read_text(), re.S)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files in the working directory, beside a model."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    build_tiny_model(
        tmp_path / "my-model", seed=0, hidden_size=32, num_layers=1, num_heads=2, intermediate_size=64
    )
    monkeypatch.chdir(tmp_path)
    return Path("mine.yaml")


def test_the_recipe_of_the_page_is_valid(recipe: Path) -> None:
    assert sorted(FILES) == ["mine.yaml", "my_reward.py", "tasks.jsonl"]
    assert python_blocks("own.md") == [FILES["my_reward.py"]]
    assert validate_recipe(recipe).name == "mine"


@pytest.mark.slow
def test_the_files_of_the_page_are_a_run(recipe: Path) -> None:
    summary = run_recipe(load_run_recipe(recipe, modes=["online"]))
    assert summary["heldout_accuracy"] == {}
    with Buffer("runs/mine/buffer", read_only=True) as buffer:
        rows = buffer.read("experiences", ["reward_parts"]).to_pylist()
        assert len(rows) >= 16
        parts = {"./my_reward.py:right", "./my_reward.py:brief"}
        assert all(set(json.loads(row["reward_parts"])) == parts for row in rows)
        assert {task.metadata["words"] for task in buffer.tasks()} == {5, 10, 20}


def _rows() -> list[tuple[str, str, str, str]]:
    assert _ACCEPTED is not None
    lines = [line.strip("| ").split(" | ") for line in _ACCEPTED[1].splitlines()[2:]]
    return [(one, two, three, four) for one, two, three, four in lines]


@pytest.mark.parametrize(("use", "answer", "right", "wrong"), _rows())
def test_rewards_accept_what_the_page_says(use: str, answer: str, right: str, wrong: str) -> None:
    def texts(cell: str) -> list[str]:
        return re.findall(r"`([^`]+)`", cell)

    reward = make_reward(texts(use)[0], {})
    task = Task("t", ({"role": "user", "content": "?"},), texts(answer)[0])
    given = {text: reward(task, text) for text in [*texts(right), *texts(wrong)]}
    assert given == {**dict.fromkeys(texts(right), 1.0), **dict.fromkeys(texts(wrong), 0.0)}
