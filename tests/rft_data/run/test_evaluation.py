"""Held-out figures against their definitions; evaluations during the online stage, and the best weights."""

import json
import math
import statistics
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.errors import EngineError, RecipeError
from rft_data.core.rows import Experience, Task
from rft_data.loop.fleet import Fleet
from rft_data.recipe import load_recipe
from rft_data.run.accuracy import figures, pass_at_k
from rft_data.run.build import shaping_pipeline
from rft_data.run.evaluations import StepEvaluations, measure
from rft_data.run.folder import Run
from rft_data.run.parts import Heldout
from rft_data.run.start import run_recipe
from rft_data.run.summary_text import table
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.test_online import write_recipe

TASKS = [Task("a", (), str(n), difficulty=float(n % 2)) for n in range(4)]


def row(task: Task, member: int = 0, turn: int = 0, **changes: object) -> Experience:
    return make_experience(
        experience_id=f"{task.task_id}/{member}/{turn}",
        taskset=task.taskset,
        task_id=task.task_id,
        member=member,
        turn=turn,
        **changes,
    )


def graded(task: Task, *marks: float) -> list[Experience]:
    """A rollout for each mark, which its only component gave it."""
    return [row(task, n, reward=mark, reward_parts={"exact": mark}) for n, mark in enumerate(marks)]


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    rng = np.random.default_rng(3)
    outcomes = [[bool(x) for x in rng.random(6) < rate] for rate in (0.0, 0.2, 0.5, 1.0)]
    found = pass_at_k([sum(each) for each in outcomes], 6)
    assert list(found) == ["1", "2", "4", "6"]
    for k, share in found.items():
        by_task = [[any(subset) for subset in combinations(each, int(k))] for each in outcomes]
        assert share == pytest.approx(np.mean([np.mean(one) for one in by_task]), abs=1e-12)


def test_rewards_below_one_show_in_the_mean_and_pass_at_the_threshold() -> None:
    rows = [r for n, task in enumerate(TASKS) for r in graded(task, 0.9, 0.9 if n else 0.4)]
    plain = figures(rows, Heldout(TASKS, 2, "exact"))
    assert plain.pass_rate == 0.0
    means = [0.65, 0.9, 0.9, 0.9]
    assert plain.mean_reward == pytest.approx(statistics.fmean(means))
    assert plain.standard_error == pytest.approx(statistics.stdev(means) / math.sqrt(4))
    passed = figures(rows, Heldout(TASKS, 2, "exact", threshold=0.9))
    assert passed.pass_rate == 7 / 8
    assert passed.pass_at_k == {"1": 7 / 8, "2": 1.0}
    assert passed.by_class == {"a/0.0": 3 / 4, "a/1.0": 1.0}


def test_a_threshold_holds_against_a_reward_that_was_stored_as_float32() -> None:
    rows = [r for task in TASKS for r in graded(task, float(np.float32(0.9)))]
    assert figures(rows, Heldout(TASKS, 1, "exact", threshold=0.9)).pass_rate == 1.0
    assert figures(rows, Heldout(TASKS, 1, "exact", threshold=0.9001)).pass_rate == 0.0


def test_each_component_has_its_mean_over_tasks() -> None:
    parts = [{"exact": 1.0, "steps": 0.5}, {"exact": 0.0, "steps": 1.0}, {"exact": 1.0}]
    marks = zip((TASKS[0], TASKS[0], TASKS[1]), (0, 1, 0), parts, strict=True)
    rows = [row(task, member, reward_parts=part) for task, member, part in marks]
    assert figures(rows, Heldout(TASKS[:2], 2, "exact")).mean_parts == {"exact": 0.75, "steps": 0.75}


def test_a_component_of_more_than_one_passes_too() -> None:
    rows = [r for task in TASKS for r in graded(task, 2.0)]
    assert figures(rows, Heldout(TASKS, 1, "exact")).pass_rate == 1.0


def test_a_rollout_of_several_turns_counts_once_by_its_last_turn() -> None:
    turns = [
        row(task, 0, turn, reward=float(n > 1) if turn == 2 else None,
            reward_parts={"exact": float(n > 1)} if turn == 2 else {})
        for n, task in enumerate(TASKS) for turn in (2, 0, 1)
    ]  # fmt: skip
    found = figures(turns, Heldout(TASKS, 1, "exact"))
    assert (found.pass_rate, found.rollouts, found.unscored) == (0.5, 4, 0)
    assert found.mean_reward == 0.5


def test_what_failed_or_is_missing_did_not_pass_and_has_no_reward() -> None:
    failed = row(TASKS[1], reward=None, reward_parts={}, unscored_reason="hung")
    found = figures([*graded(TASKS[0], 1.0), failed], Heldout(TASKS, 1, "exact"))
    assert (found.pass_rate, found.rollouts, found.unscored) == (0.25, 4, 3)
    assert (found.mean_reward, found.standard_error) == (1.0, None)
    with pytest.raises(EngineError, match="all 1 evaluation rollouts failed, the first with: hung"):
        figures([failed], Heldout(TASKS, 1, "exact"))
    unjudged = replace(failed, unscored_reason="reward 'mine': returned None; wanted a finite number")
    with pytest.raises(RecipeError, match=r"returned None; .*try the reward on one task: rft debug reward"):
        figures([unjudged], Heldout(TASKS, 1, "exact"))
    with pytest.raises(EngineError, match="the buffer refused every row"):
        figures([], Heldout(TASKS, 1, "exact"))


def test_a_tasks_own_reward_decides_for_it() -> None:
    own = Task("a", (), "own", difficulty=1.0, reward="f1")
    rows = [row(own, reward_parts={"f1": 1.0}), *graded(TASKS[0], 0.0)]
    assert figures(rows, Heldout([own, TASKS[0]], 1, "exact")).by_class == {"a/0.0": 0.0, "a/1.0": 1.0}


# --- in a run --------------------------------------------------------------------------------------


class Explorer:
    """A role that stores one graded rollout of each task."""

    name, incarnation = "explorer-0", 0

    def __init__(self, run: Run, mark: float) -> None:
        self.run = run
        self.mark = mark

    def call(self, method: str, returns: Any, *, deadline_s: float, **arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(getattr(self, method)(**arguments))
        return done

    def evaluate(self, tasks: list[Task], label: str, samples: int) -> list[int]:
        rows = [replace(r, experience_id=f"{label}/{r.experience_id}", group_id=f"{label}-{r.task_id}",
                        source="eval") for task in tasks for r in graded(task, self.mark)]  # fmt: skip
        return list(self.run.buffer.append(rows).seqs)


def playing(run: Run, mark: float) -> Fleet:
    return Fleet([Explorer(run, mark)], run.versions, whole_rounds=True, deadline_s=60)  # type: ignore[list-item]


@pytest.fixture
def run(tmp_path: Path):
    with closing(Run(load_recipe(write_recipe(tmp_path)))) as opened:
        opened.directory.mkdir(exist_ok=True)
        yield opened


def publish(run: Run, step: int) -> None:
    run.versions.publish(step, lambda folder: (folder / "weights").write_text(str(step)))


@pytest.mark.slow
def test_the_best_weights_are_kept_and_named(run: Run) -> None:
    for step, mark in ((2, 0.5), (4, 1.0), (6, 0.75), (8, 1.0)):
        publish(run, step)
        found = StepEvaluations(run, playing(run, mark), Heldout(TASKS, 1, "exact"), 2).measure(step)
        assert found["heldout/reward"] == mark
    folder = run.directory / "best" / "step-4"
    assert [child.name for child in folder.parent.iterdir()] == ["step-4"]
    assert (folder / "weights").read_text() == "4"
    noted = json.loads((run.directory / "progress.json").read_text())
    assert (noted["best"]["step"], noted["best"]["model"]) == (4, str(folder))
    assert {step: one["mean_reward"] for step, one in noted["evaluations"].items()} == {
        "2": 0.5, "4": 1.0, "6": 0.75, "8": 1.0,
    }  # fmt: skip


@pytest.mark.slow
def test_operators_shape_the_reward_of_an_evaluation_too(run: Run) -> None:
    shaping = OperatorPipeline([{"format_reward_mapper": {"boxed": True, "weight": -0.5}}], name="ops")
    judged = Heldout(TASKS, 1, "exact", threshold=1.0, shaping=shaping)
    publish(run, 0)
    found = measure(run, playing(run, 1.0), judged, "start", "start")
    assert (found.pass_rate, found.mean_reward) == (1.0, 1.0)
    boxed = OperatorPipeline([{"format_reward_mapper": {"pattern": "2", "weight": -0.5}}], name="ops")
    found = measure(run, playing(run, 1.0), replace(judged, shaping=boxed), "again", "again")
    assert (found.pass_rate, found.mean_reward) == (0.0, 0.5)
    assert run.progress.heldout_reward["again"] == {"reward": 0.5, "reward_error": 0.0}
    assert run.progress.heldout_parts["again"] == {"exact": 1.0}


def test_only_operators_that_may_shape_a_reward_run_in_an_evaluation(tmp_path: Path) -> None:
    plain = load_recipe(write_recipe(tmp_path))
    assert shaping_pipeline(plain, None) is None
    shaped = load_recipe(
        write_recipe(tmp_path),
        ["experience_ops=[{reward_variance_filter: {}}, {overlong_penalty_mapper: {max_tokens: 9, "
         "cache_tokens: 2}}, {grpo_advantage_mapper: {}}]"],
    )  # fmt: skip
    pipeline = shaping_pipeline(shaped, None)
    assert pipeline is not None
    assert list(pipeline.metrics()) == []
    assert [step.stage.name for step in pipeline._steps] == ["overlong_penalty_mapper"]


@pytest.mark.slow
def test_accuracies_are_noted_in_the_order_they_were_measured(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    with closing(Run(recipe)) as first:
        first.directory.mkdir(exist_ok=True)
        first.note(heldout_accuracy={"start": 0.1, "sft": 0.2, "final": 0.3})
        first.once("grpo", lambda: None)
    with closing(Run(recipe)) as resumed:
        assert list(resumed.progress.heldout_accuracy) == ["start", "sft", "final"]


def test_evaluations_fall_on_published_weights(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    with pytest.raises(
        RecipeError, match=r"'evaluation.every' is 3, and weights are published every 2 steps"
    ):
        load_recipe(path, ["evaluation.every=3", "sync.every=2", "sync.max_staleness=1"])
    assert load_recipe(path, ["evaluation.every=4", "sync.every=2", "sync.max_staleness=1"])


def test_a_recipe_without_the_new_keys_keeps_its_hash(tmp_path: Path) -> None:
    assert set(load_recipe(write_recipe(tmp_path)).saved()["evaluation"]) == {"limit", "samples"}


@pytest.mark.heavy
def test_a_run_measures_every_few_steps_and_names_its_best_weights(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path), ["evaluation.every=2"])
    summary = run_recipe(recipe)
    assert list(summary["evaluations"]) == ["2", "4"]
    assert summary["best"]["step"] in (2, 4)
    assert (Path(summary["best"]["model"]) / "model.safetensors").is_file()
    assert list(summary["heldout_accuracy"]) == ["start", "sft", "final"]
    assert "mean reward" in table(summary)
    with closing(Run(recipe)) as run:
        keys = run.buffer.read("metrics").to_pylist()
    assert [(r["step"], r["role"]) for r in keys if r["key"] == "heldout/pass_rate"] == [(1, "run")]
