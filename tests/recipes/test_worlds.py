"""The shipped worlds: their parts, and a few real steps of each with every part real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipes.calculator import Calculator, total, used_calculator
from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.rows import Task
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe

ROOT = Path(__file__).parents[2]
SMALL = ["model.build.hidden_size=64", "model.build.num_layers=1", "model.build.num_heads=2"]
NONE_DROPPED = "experience_ops=[{grpo_advantage_mapper: {}}]"
TRIMMED = {
    "calculator": [
        *SMALL,
        "experts.0.limit=32",
        "experts.1.limit=16",
        "explorer.max_tokens=24",
        NONE_DROPPED,
    ],
    "frozen_lake": [*SMALL, "experts.0.limit=32", "explorer.workflow.args.turns=4"],
    "guessing": [
        *SMALL,
        "experts.0.limit=16",
        "experts.1.limit=16",
        "explorer.workflow.args={args: {guesses: 2}}",
        NONE_DROPPED,
    ],
    "countdown": [
        *SMALL,
        "experts.0.limit=16",
        "experts.1.limit=16",
        "explorer.max_tokens=8",
        NONE_DROPPED,
    ],
    "small_programs": [
        *SMALL,
        "experts.0.limit=16",
        "experts.1.limit=16",
        "explorer.max_tokens=8",
        NONE_DROPPED,
    ],
}


@pytest.mark.parametrize(
    ("terms", "value"), [("12 + 30 - 5", 37), ("4", 4), ("7-10", -3), ("1 +2+ 3", 6), ("10 - 2 - 3", 5)]
)
def test_total_is_what_the_sum_comes_to(terms: str, value: int) -> None:
    assert total(terms) == Calculator().sum(terms) == value


@pytest.mark.parametrize("terms", ["", "2 * 3", "__import__('os')", "1 + + 2"])
def test_the_calculator_takes_sums_only(terms: str) -> None:
    with pytest.raises(ValueError, match="is no sum"):
        Calculator().sum(terms)


def test_a_shown_solution_calls_the_tool_and_says_what_it_answers() -> None:
    prompt = "State the final answer to the following arithmetic problem: 12 + 30 - 5 ="
    call, answer, final = used_calculator(Task("sums", ({"role": "user", "content": prompt},), answer="37"))
    said = json.loads(call["content"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert said == {"name": "sum", "arguments": {"terms": "12 + 30 - 5"}}
    assert (answer["role"], answer["content"], final["content"]) == ("tool", "37", "#### 37")
    with pytest.raises(RowError, match="there is no sum"):
        used_calculator(Task("sums", ({"role": "user", "content": "Hello"},)))


def steps_of(name: str, folder: Path, steps: int = 2) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A shipped recipe's run of a few steps: its summary and its rollouts."""
    changes = [
        f"run_dir={folder}/run",
        f"buffer.uri={folder}/buffer",
        "explorer.engine.use=transformers",
        "explorer.group_size=4",
        "stages.0.trl.num_train_epochs=1",
        "stages.1.groups_per_step=2",
        f"stages.1.steps={steps}",
        "evaluation.limit=2",
        *TRIMMED[name],
    ]
    summary = run_recipe(load_recipe(ROOT / "recipes" / f"{name}.yaml", changes))
    with Buffer(folder / "buffer") as buffer:
        rows = buffer.read("experiences").to_pylist()
    return summary, rows


@pytest.mark.heavy
def test_shipped_worlds_take_real_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    summary, rows = steps_of("calculator", tmp_path / "calculator")
    assert summary["consumed_steps"] == 2
    shown = [row for row in rows if row["explorer_id"] == "recipes.calculator:used_calculator"]
    assert len(shown) == 32
    assert [message["role"] for message in json.loads(shown[0]["messages"])][1:] == [
        "assistant", "tool", "assistant",
    ]  # fmt: skip
    played = [row for row in rows if row["source"] == "rollout"]
    assert {json.loads(row["metadata"])["end"] for row in played} <= {"finished", "turns", "budget"}
    assert json.loads(played[0]["tools"])[0]["function"]["name"] == "sum"

    summary, rows = steps_of("frozen_lake", tmp_path / "lake")
    assert summary["consumed_steps"] == 2
    played = [row for row in rows if row["source"] == "rollout"]
    rollouts = {(row["group_id"], row["member"]) for row in played}
    assert len(rollouts) == 16 < len(played) <= 16 * 4
    assert all(row["environment"] and sum(row["action_mask"]) == 1 for row in played)
    assert {row["turn"] for row in played} == {0, 1, 2, 3}


@pytest.mark.heavy
def test_shipped_worlds_of_one_answer_take_a_real_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    parts = {
        "guessing": {"world"},
        "countdown": {"reasoning_gym"},
        "small_programs": {"code_tests", "code_tests.failed", "code_tests.tests"},
    }
    for name, wanted in parts.items():
        summary, rows = steps_of(name, tmp_path / name, steps=1)
        assert summary["consumed_steps"] == 1
        played = [row for row in rows if row["source"] == "rollout"]
        assert len(played) == 8
        for row in played:
            assert (row["unscored_reason"], row["turn"]) == (None, 0)
            assert wanted <= set(json.loads(row["reward_parts"]))
