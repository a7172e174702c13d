"""Runs whose rollouts are processes of a program: asynchronous with an explorer of its own, and inline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.run.start import run_recipe
from tests.rft_data.run.test_modes import COMMON, EVAL, EXPLORE, STAGE, TASKS, recipe

AGENT = Path(__file__).parents[2] / "explorers" / "workflows" / "programs" / "agent.py"
PLAYED = """\
  workflow: {use: program, args: {command: [python, agent.py, two_turns], limits: {processes: 2}}}
  reward: []
"""
"""The program lies beside the recipe."""
ONLINE = COMMON + "{model}" + "{tasks}" + "{operators}" + "selector: {{use: shuffle}}\nstages:\n{stage}"


def played_tasks(folder: Path) -> str:
    """Tasks that the program plays, which is put beside the recipe."""
    shutil.copy(AGENT, folder)
    tasks = TASKS.replace("max_model_len: 64", "max_model_len: 256")
    return tasks.replace("  reward: [{use: answer_format}]\n", PLAYED)


@pytest.mark.heavy
def test_programs_beside_an_explorer_of_its_own_are_whole_rollouts_that_are_trained_on(
    tmp_path: Path,
) -> None:
    tasks = played_tasks(tmp_path)
    template = ONLINE + "placement: {{use: local}}\nsync: {{every: 1, max_staleness: 1}}\n"
    stage = STAGE.replace("steps: 3, checkpoint_every: 2", "steps: 2")
    done = run_recipe(recipe(tmp_path, template, "looking", "online", stage=stage, tasks=tasks))
    assert done["groups"]["trained"] == 4
    with Buffer(tmp_path / "buffer") as buffer:
        rows = buffer.read("experiences").to_pylist()
        step_of = {row["version"]: row["step"] for row in buffer.read("versions").to_pylist()}
        grants = [one for one in buffer.read("leases").to_pylist() if one["kind"] == "grant"]
    assert set(step_of.values()) == {0, 1, 2}
    assert len({(row["group_id"], row["member"]) for row in rows}) == len(rows) >= 8
    for row in rows:
        metadata = json.loads(row["metadata"])
        assert (metadata["turns"], metadata["end"]) == (2, "finished")
        assert metadata["environment_state"]["output"].startswith("the model says ")
        assert json.loads(row["reward_parts"]) == {"world": row["reward"]}
        assert row["reward"] in (0.0, 1.0)
        assert 0 < sum(row["action_mask"]) <= 16
        assert {step_of[span["version"]] for span in row["version_spans"]} <= {0, 1, 2}
    trained = {group: one["step"] for one in grants for group in one["group_ids"]}
    lags = {
        trained[row["group_id"]] - step_of[row["version_min"]] for row in rows if row["group_id"] in trained
    }
    assert lags <= {0, 1}


@pytest.mark.slow
def test_programs_explore_and_measure_in_the_runs_own_process(tmp_path: Path) -> None:
    tasks = played_tasks(tmp_path)
    explored = run_recipe(recipe(tmp_path, EXPLORE, "looking", "explore", groups=2, tasks=tasks))
    assert explored["groups"]["ready"] == 2
    template = EVAL.replace("limit: 4", "limit: 2")
    models = tmp_path / "looking" / "model"
    measured = run_recipe(recipe(tmp_path, template, "measuring", "eval", models=models, tasks=tasks))
    assert len(measured["heldout_accuracy"]) == 1
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        rows = buffer.read("experiences").to_pylist()
    assert sorted(row["source"] for row in rows) == ["eval"] * 2 + ["rollout"] * 4
    for row in rows:
        assert json.loads(row["metadata"])["environment_state"]["output"].startswith("the model says ")
        assert (row["run_id"], sum(row["action_mask"]) > 0) == (
            "measuring" if row["source"] == "eval" else "looking",
            True,
        )
