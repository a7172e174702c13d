"""Explore, train and evaluate as runs of their own, at different times, with every part real."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from explorers.engines.transformers_engine import TransformersEngine
from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError, RecipeError, UnknownComponentError
from rft_data.loop.explore_only import ExploreLoop
from rft_data.reading.branch import branch
from rft_data.reading.tags import View
from rft_data.recipe import load_recipe
from rft_data.recipe.load import load_run
from rft_data.run.data_check.fed import unfed
from rft_data.run.start import run_recipe

COMMON = """\
recipe: 1
name: {name}
mode: {mode}
run_dir: {root}/{name}
buffer: {{uri: {root}/buffer}}
"""
MODEL = """\
model:
  build: {use: tiny_qwen2, hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}
"""
TASKS = """\
tasks:
  - name: sums
    source:
      use: reasoning_gym
      dataset: chain_sum
      size: 60
      args: {min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}
    heldout: 0.25
explorer:
  engine: {use: transformers, max_model_len: 64}
  group_size: 2
  max_tokens: 8
  reward: [{use: answer_format}]
"""
OPERATORS = """\
experience_ops:
  - grpo_advantage_mapper: {}
"""
EXPLORE = COMMON + "{model}" + "{tasks}" + "{operators}" + "selector: {{use: shuffle}}\ngroups: {groups}\n"
WATCHED = "monitor: {{trackers: [tensorboard]}}\n"
TRAIN = COMMON + "{model}" + "{operators}" + "explored_by: looking\ngroup_size: 2\nstages:\n{stage}"
STAGE = "  - {algorithm: grpo, groups_per_step: 2, steps: 3, checkpoint_every: 2}\n"
EVAL = COMMON + "{tasks}" + "models: ['{models}']\nevaluation: {{limit: 4}}\n"
SHAPED = """experience_ops:
  - format_reward_mapper: {{pattern: '', weight: 0.5}}
  - grpo_advantage_mapper: {{}}
"""
PARTS = {"model": MODEL, "tasks": TASKS, "operators": OPERATORS, "stage": STAGE}


def recipe(root: Path, template: str, name: str, mode: str, **values: object):
    path = root / f"{name}.yaml"
    path.write_text(template.format(root=root, name=name, mode=mode, **{**PARTS, **values}))
    return load_recipe(path)


def metrics_of(root: Path, run_id: str) -> list[tuple[int, str, str, float]]:
    """Step, role, key and value of every number of a run."""
    with Buffer(root / "buffer", read_only=True) as buffer:
        rows = buffer.read("metrics").to_pylist()
    return [(row["step"], row["role"], row["key"], row["value"]) for row in rows if row["run_id"] == run_id]


def shown_by_tensorboard(folder: Path) -> bytes:
    """The event files of a run."""
    return b"".join(file.read_bytes() for file in (folder / "tensorboard" / "by_step").glob("*tfevents*"))


class OwnEngine(TransformersEngine):
    """An engine that a recipe names by import path."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        OwnEngine.made += 1


@pytest.mark.slow
def test_a_recipe_may_name_an_engine_of_ones_own(tmp_path: Path) -> None:
    tasks = TASKS.replace("use: transformers", f"use: '{__name__}:{OwnEngine.__name__}'")
    explored = run_recipe(recipe(tmp_path, EXPLORE, "looking", "explore", groups=2, tasks=tasks))
    assert explored["groups"]["ready"] == 2
    assert OwnEngine.made == 1


@pytest.mark.slow
def test_a_refused_recipe_leaves_no_model_for_the_next_one(tmp_path: Path) -> None:
    refused = recipe(
        tmp_path, EXPLORE.replace("shuffle", "no_module:Selector"), "looking", "explore", groups=2
    )
    with pytest.raises(UnknownComponentError, match="no_module"):
        run_recipe(refused)
    assert not (Path(refused.run_dir) / "model").exists()


@pytest.mark.slow
def test_what_one_run_explored_another_trains_on_and_a_third_measures(tmp_path: Path) -> None:
    watched = EXPLORE + WATCHED
    assert run_recipe(recipe(tmp_path, watched, "looking", "explore", groups=4))["groups"]["ready"] == 4
    explored = run_recipe(load_run(tmp_path / "looking", ["groups=6"]))
    assert explored["groups"]["ready"] == 6
    found = metrics_of(tmp_path, "looking")
    assert {step for step, *_ in found} == {3, 5}, "one record a checkpoint: groups that are closed, from 0"
    last = {(role, key): value for step, role, key, value in found if step == 5}
    assert (last["sampler", "ready"], last["loop", "residual"], last["loop", "policy_version"]) == (6, 0, 0)
    assert 0 < last["loop", "groups_per_s"] < math.inf
    assert 0 <= last["loop", "rollout_reward"] <= 1
    assert b"train/loop/groups_per_s" in shown_by_tensorboard(tmp_path / "looking")
    greedy = recipe(tmp_path, TRAIN, "greedy", "train", stage=STAGE.replace("steps: 3", "steps: 4"))
    assert ["left 6 uses of groups" in one.message for one in unfed(greedy, [])] == [True]
    with pytest.raises(RecipeError, match="left 6 uses of groups that may be trained on; 4 steps of 2"):
        run_recipe(greedy)
    learning = recipe(tmp_path, TRAIN, "learning", "train")
    assert list(unfed(learning, [])) == []
    trained = run_recipe(learning)
    assert list(unfed(learning, [])) == [], "its own groups: it would be resumed"
    assert trained["groups"]["trained"] == 6
    assert trained["rows"]["trained"] == 12
    assert trained["consumed_steps"] == 3
    with Buffer(tmp_path / "buffer") as buffer:
        leases = [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"]
        assert [lease["step"] for lease in leases] == [0, 1, 2]
        assert {lease["run_id"] for lease in leases} == {"looking"}
        assert len({g for lease in leases for g in lease["group_ids"]}) == 6
    again = run_recipe(recipe(tmp_path, TRAIN, "learning", "train"))
    assert again == trained
    with pytest.raises(RecipeError, match="have been trained on already"):
        run_recipe(recipe(tmp_path, TRAIN, "learning-again", "train"))
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        assert branch(buffer, tmp_path / "copy", View()).new["groups"] == 6
    elsewhere = TRAIN.replace("{root}/buffer", "{root}/copy")
    repeated = run_recipe(recipe(tmp_path, elsewhere, "learning-again", "train"))
    assert (repeated["groups"], repeated["rows"]) == (trained["groups"], trained["rows"])
    namesakes = f"{tmp_path}/learning*/checkpoints/checkpoint-3"
    compared = run_recipe(recipe(tmp_path, EVAL, "comparing", "eval", models=namesakes))
    assert {Path(name).parts[-3] for name in compared["heldout_accuracy"]} == {"learning", "learning-again"}
    folders = f"{tmp_path}/learning/checkpoints/checkpoint-*"
    template = EVAL + SHAPED + WATCHED
    measured = run_recipe(recipe(tmp_path, template, "measuring", "eval", models=folders))
    steps = [int(name.rsplit("-", 1)[1]) for name in measured["heldout_accuracy"]]
    assert steps == [2, 3]
    with Buffer(tmp_path / "buffer") as buffer:
        sources = buffer.read("experiences", ["source", "run_id", "reward"]).to_pylist()
        stored = [row["reward"] for row in sources if (row["source"], row["run_id"]) == ("eval", "measuring")]
    assert len(stored) == 8
    shown = [one["reward"] for one in measured["heldout_reward"].values()]
    assert sum(shown) / 2 == sum(stored) / 8 + 0.5, "the operators' half point"
    assert json.loads((tmp_path / "measuring" / "summary.json").read_text()) == measured
    recorded = {
        step: value for step, _, key, value in metrics_of(tmp_path, "measuring") if key == "heldout/pass_rate"
    }
    assert recorded == dict(enumerate(measured["heldout_accuracy"].values()))
    assert b"eval/reward" in shown_by_tensorboard(tmp_path / "measuring")


@pytest.mark.slow
def test_training_on_what_nobody_explored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no group of a run 'looking'"):
        run_recipe(recipe(tmp_path, TRAIN, "learning", "train"))
    with Buffer(tmp_path / "buffer") as buffer:
        assert buffer.counts()["runs"] == 0


@pytest.mark.slow
def test_a_recipe_without_operators_or_trackers_keeps_its_hash(tmp_path: Path) -> None:
    saved = recipe(tmp_path, EVAL, "measuring", "eval", models="m").saved()
    assert not {"experience_ops", "monitor"} & set(saved)
    assert "monitor" not in recipe(tmp_path, EXPLORE, "looking", "explore", groups=2).saved()
    with pytest.raises(RecipeError, match="of mode 'eval' has none: leave it out"):
        recipe(tmp_path, EVAL + "monitor: {{prometheus_port: 9}}\n", "measuring", "eval", models="m")


@pytest.mark.slow
def test_evaluating_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="names no model folder"):
        run_recipe(recipe(tmp_path, EVAL, "measuring", "eval", models=f"{tmp_path}/nothing-*"))


@pytest.mark.slow
def test_an_exploring_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = recipe(
        tmp_path,
        EXPLORE.replace("groups: {groups}", "groups: {groups}\ncheckpoint_every: 2"),
        "looking",
        "explore",
        groups=6,
    )

    class Killed(BaseException):
        pass

    seal, seals = ExploreLoop.seal, []

    def dying(self: ExploreLoop) -> None:
        seal(self)
        seals.append(self.exploring.closed)
        if len(seals) == 2:
            raise Killed

    monkeypatch.setattr(ExploreLoop, "seal", dying)
    with pytest.raises(Killed):
        run_recipe(loaded)
    monkeypatch.setattr(ExploreLoop, "seal", seal)
    summary = run_recipe(loaded)
    assert summary["groups"]["ready"] == 6
    with Buffer(tmp_path / "buffer") as buffer:
        groups = buffer.read("groups").to_pylist()
    assert len(groups) == 6
    assert {group["attempt"] for group in groups} == {0, 1}
    assert len({group["task_id"] for group in groups}) == 6, "a task was played twice within an epoch"


@pytest.mark.slow
def test_stored_groups_of_another_run_are_mixed_in_at_the_exact_ratio(tmp_path: Path) -> None:
    run_recipe(recipe(tmp_path, EXPLORE, "looking", "explore", groups=4))
    online = (
        COMMON
        + "{model}"
        + "{tasks}"
        + "{operators}"
        + (
            "selector: {{use: shuffle}}\n"
            "sampler: {{use: mix, args: {{parts: {{own: 1, 'looking/': 1}}}}}}\n"
            "stages:\n{stage}evaluation: {{limit: 2}}\n"
        )
    )
    summary = run_recipe(recipe(tmp_path, online, "mixing", "online"))
    assert summary["groups"]["trained"] == 6
    with Buffer(tmp_path / "buffer") as buffer:
        leases = [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"]
    sources = [[name.partition("/")[0] for name in lease["group_ids"]] for lease in leases]
    assert [sorted(names) for names in sources] == [["looking", "mixing"]] * 3
