"""From preferences to a reward model to a policy that explores for its score."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from tests.rft_data.run.test_offline_run import RECIPE, rollouts, write
from tests.rft_data.run.test_online import check_books, write_recipe


@pytest.mark.heavy
def test_run_explores_for_the_score_of_a_reward_model_trained_before(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append(rollouts(20))
    first, *_ = RECIPE.partition("  - algorithm: sft")
    stage = "  - {{algorithm: reward_model, data: {{pairs: mined}}, trl: {{max_steps: 2}}}}\n"
    run_recipe(load_recipe(write(tmp_path, first + stage)))
    scorer = tmp_path / "run" / "stages" / "0-reward_model"
    (tmp_path / "online").mkdir()
    online = write_recipe(tmp_path / "online", steps=2)
    reward = f'[{{"use": "reward_model", "args": {{"model": "{scorer}"}}}}]'
    changes = [f"explorer.reward={reward}", "explorer.limits={reward_processes: 1}"]
    operators = 'experience_ops=[{"grpo_advantage_mapper": {}}]'
    summary = run_recipe(load_recipe(online, [*changes, operators, "evaluation.limit=4"]))
    assert summary["consumed_steps"] == 2
    check_books(tmp_path / "online", steps=2)
    with Buffer(tmp_path / "online" / "run" / "buffer", read_only=True) as buffer:
        rows = buffer.read("experiences", ["source", "reward", "reward_parts"]).to_pylist()
    scores = [row["reward"] for row in rows if row["source"] == "rollout"]
    assert len(set(scores)) > len(scores) // 4  # no rule gives so many different rewards
    assert None not in scores
