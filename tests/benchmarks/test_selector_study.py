"""The study of the selectors: the world does what it says, records last, bars follow from records."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.report import Bar, finish
from benchmarks.selectors import cells as grid
from benchmarks.selectors import grpo, study
from benchmarks.selectors.records import Records, bars_of_all, code_version, repeat
from benchmarks.selectors.savings import best, calibration, ratio, share_of_saving
from benchmarks.selectors.simulator import Oracle, Simulation
from benchmarks.selectors.world import Policy, World, make_pool
from rft_data.core.canonical import content_id
from rft_data.core.errors import IntegrityError, RftError
from rft_data.core.groups import GroupResult
from rft_data.core.rows import TaskKey
from rft_data.recipe import load_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.tasks.selectors import Shuffle

WORLD = World()


class Told:
    """A selector that plays given tasks and writes down what it is told."""

    def __init__(self, keys: Sequence[TaskKey]) -> None:
        self.keys = list(keys)
        self.told: list[GroupResult] = []

    def select(self, n: int) -> list[TaskKey]:
        return [self.keys[i % len(self.keys)] for i in range(n)]

    def observe(self, results: Sequence[GroupResult]) -> None:
        self.told += results

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...

    def metrics(self) -> dict[str, float]:
        return {}


def test_a_pool_follows_from_its_seed_and_has_the_shares_it_says() -> None:
    pool, again = make_pool(WORLD, 20_000, 3), make_pool(WORLD, 20_000, 3)
    assert np.array_equal(pool.difficulty, again.difficulty)
    assert np.array_equal(pool.label, again.label)
    assert not np.array_equal(pool.difficulty, make_pool(WORLD, 20_000, 4).difficulty)
    assert 1 - pool.solvable.mean() == pytest.approx(WORLD.unsolvable, abs=0.01)
    # a random label is right by chance in one case of `skills`
    wrong = WORLD.wrong_label * (1 - 1 / WORLD.skills)
    assert (pool.label != pool.skill).mean() == pytest.approx(wrong, abs=0.01)


def test_tasks_carry_the_label_and_the_difficulty_only_where_it_may_be_seen() -> None:
    pool = make_pool(WORLD, 50, 0)
    blind, told = pool.tasks(difficulty=False), pool.tasks(difficulty=True)
    assert [task.key for task in blind] == [task.key for task in told]
    assert [task.taskset for task in blind] == [f"skill-{label:02d}" for label in pool.label]
    assert {task.difficulty for task in blind} == {None}
    assert all(abs(t.difficulty - d) <= 0.25 for t, d in zip(told, pool.said_difficulty, strict=True))


def test_what_a_group_teaches_is_on_average_the_policy_gradient() -> None:
    pool = make_pool(WORLD, 400, 0)
    policy, rng = Policy(WORLD, pool), np.random.default_rng(0)
    task = int(np.argmin(np.abs(policy.pass_rates() - 0.6)))
    p = policy.pass_rates()[task]
    _, signal = policy.sample(np.full(40_000, task), rng)
    assert signal.mean() == pytest.approx((1 - 2 * WORLD.verifier_flip) * p * (1 - p), rel=0.02)


def test_an_unsolvable_task_is_rewarded_now_and_then_and_teaches_nothing() -> None:
    pool = make_pool(WORLD, 400, 0)
    policy, task = Policy(WORLD, pool), int(np.flatnonzero(~pool.solvable)[0])
    rewards, signal = policy.sample(np.full(5_000, task), np.random.default_rng(0))
    assert rewards.mean() == pytest.approx(WORLD.verifier_flip, abs=0.005)
    assert not signal.any()


def test_practice_reaches_neighbours_as_a_plain_loop_says() -> None:
    pool = make_pool(WORLD, 400, 0)
    policy = Policy(WORLD, pool)
    policy.skills += np.linspace(0, 1, WORLD.skills)
    before = policy.skills.copy()
    tasks, signal = np.array([3, 5, 5, 17]), np.array([0.1, 0.2, -0.05, 0.25])
    policy.learn(tasks, signal)
    for k in range(WORLD.skills):
        gain = 0.0
        for task, taught in zip(tasks, signal, strict=True):
            skill = int(pool.skill[task])
            steps = abs(skill % WORLD.rungs - k % WORLD.rungs)
            same = skill // WORLD.rungs == k // WORLD.rungs
            gain += taught * WORLD.rung_transfer**steps * (1 if same else WORLD.domain_transfer)
        lost = WORLD.forgetting * (before[k] - WORLD.start_skill)
        assert policy.skills[k] == pytest.approx(before[k] + WORLD.learning_rate * gain / 4 - lost)


def test_a_worn_task_teaches_less_each_time_it_is_played() -> None:
    world = World(wear=0.2, forgetting=0.0)
    policy = Policy(world, make_pool(world, 400, 0))
    gains = []
    for _ in range(3):
        before = policy.skills.copy()
        policy.learn(np.array([7]), np.array([0.1]))
        gains.append(float((policy.skills - before).sum()))
    assert [gain / gains[0] for gain in gains] == pytest.approx([1.0, 0.8, 0.64])


def test_a_selector_is_told_of_every_group_and_refill_counts_what_it_discards() -> None:
    pool = make_pool(WORLD, 200, 0)
    policy = Policy(WORLD, pool)
    rates = policy.pass_rates()
    keys = [task.key for task in pool.tasks(difficulty=False)]
    selector = Told([keys[i] for i in np.argsort(-rates * (1 - rates))[:40]])
    outcome = Simulation(policy, selector, keys, seed=0).run(refill=True, max_steps=2)
    assert outcome.steps == 2
    assert outcome.rollouts == len(selector.told) * WORLD.group_size
    dropped = [result for result in selector.told if result.dropped_by]
    assert all(len(set(result.rewards)) == 1 and not result.seqs for result in dropped)
    assert outcome.discarded == len(dropped) * WORLD.group_size
    assert len(selector.told) - len(dropped) == 2 * WORLD.groups_per_step
    assert len({result.ticket.ordinal for result in selector.told}) == len(selector.told)


def test_the_oracle_takes_the_most_informative_tasks_and_learns_faster_than_uniform() -> None:
    pool, scores = make_pool(WORLD, 500, 0), []
    tasks = pool.tasks(difficulty=False)
    keys = [task.key for task in tasks]
    for informed in (True, False):
        policy = Policy(WORLD, pool)
        selector = Oracle(policy, keys) if informed else Shuffle(tasks, seed=0)
        if informed:
            rates = policy.pass_rates()
            values = (rates * (1 - rates))[[int(key.task_id[:16], 16) for key in selector.select(20)]]
            assert values.min() >= np.sort(rates * (1 - rates))[-20]
        scores.append(Simulation(policy, selector, keys, seed=0).run(refill=False, max_steps=15).score)
    assert scores[0] > scores[1]


@pytest.mark.slow
def test_a_cell_comes_out_the_same_again() -> None:
    cell = study.Cell("standard", "dapo_filter", 1_000, 1)
    pool = make_pool(WORLD, 1_000, 1)
    tasks = pool.tasks(difficulty=False)
    first, second = (study.run_cell(cell, pool, tasks) for _ in range(2))
    drop = {"seconds"}
    assert {k: v for k, v in first.items() if k not in drop} == {
        k: v for k, v in second.items() if k not in drop
    }
    assert first["reached"]
    assert first["rollouts_to_target"] == first["rollouts"] == first["discarded"] + 512 * first["steps"]


@pytest.mark.slow
def test_a_finished_cell_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--records", str(tmp_path / "r.jsonl"), "--world", "standard", "--only", "uniform,1000,0"]
    study.main(arguments)
    (before,) = Records(tmp_path / "r.jsonl").rows()
    study.main(arguments)
    assert Records(tmp_path / "r.jsonl").rows() == [before]
    assert before["command"] in f"python -m benchmarks.selectors.study {' '.join(arguments[2:])}"
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    bars = {bar["name"]: bar for bar in last["bars"]}
    assert bars["best_vs_uniform_rollouts_sim"]["holds"] is False, "most cells are missing"


def test_records_outlive_a_torn_line_and_tell_a_damaged_one(tmp_path: Path) -> None:
    records = Records(tmp_path / "deep" / "r.jsonl")
    assert records.rows() == []
    records.append({"recipe_hash": "a", "n": 1})
    with records.path.open("a") as file:
        file.write('{"recipe_hash": "b", "n":')
    assert [row["n"] for row in records.rows()] == [1]
    records.append({"recipe_hash": "c", "n": 3})
    assert [row["n"] for row in records.rows()] == [1, 3]
    records.path.write_text('{"n": 1}\nnonsense\n{"n": 2}\n')
    with pytest.raises(IntegrityError, match=r"r.jsonl:2 is not a record"):
        records.rows()


@dataclass(frozen=True)
class OneCell:
    recipe_hash: str

    @property
    def command(self) -> str:
        return f"run {self.recipe_hash}"


def test_only_the_newest_records_of_the_present_code_count(tmp_path: Path) -> None:
    records, cells = Records(tmp_path / "r.jsonl"), [OneCell("a"), OneCell("b")]
    for row in ({"recipe_hash": "a", "n": 1}, {"recipe_hash": "of older code"}, {"recipe_hash": "a", "n": 2}):
        records.append(row)
    assert [row["n"] for row in records.found(cells)] == [2]
    assert records.missing(cells) == cells[1:]


def test_a_bar_of_missing_records_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("saving", 2.0, 1.6)
    assert bars_of_all([bar], []) == [bar]
    finish(bars_of_all([bar], [OneCell("b")]), {})
    table, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"saving +missing  \(bar >= 1.6: MISSED\)", table)
    assert json.loads(last)["bars"] == [{"name": "saving", "value": None, "bound": 1.6, "holds": False}]


def test_recorded_cells_are_run_again_and_compared(tmp_path: Path) -> None:
    records, cells = Records(tmp_path / "r.jsonl"), [OneCell("a"), OneCell("b")]
    with pytest.raises(RftError, match="no record of the present code"):
        repeat(cells, records, lambda _: {}, 2)
    records.append({"recipe_hash": "a", "steps": 3, "seconds": 1.0})
    outcome = {"recipe_hash": "a", "steps": 3, "seconds": 9.0}
    assert repeat(cells, records, lambda _: outcome, 2) == []
    assert repeat(cells, records, lambda _: {**outcome, "steps": 4}, 2) == ["run a: steps was 3, is 4"]


def test_a_code_version_changes_with_what_is_computed_and_not_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "studied"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def version(first: str, second: str) -> str:
        (package / "first.py").write_text(first)
        (package / "second.py").write_text(second)
        return code_version(["studied.first"], ["studied."])

    code = "from studied.second import g\ndef f():\n    return g() + 1\n"
    before = version(code, "def g():\n    return 1\n")
    assert version(code + "# a word\n", 'def g():\n    """A word."""\n    return 1\n') == before
    assert version(code, "def g():\n    return 2\n") != before
    assert version(code.replace("+ 1", "+ 2"), "def g():\n    return 1\n") != before


def test_a_ratio_is_of_means_over_shared_seeds_within_its_interval() -> None:
    found = ratio({0: 100.0, 1: 120.0, 2: 140.0, 9: 1e9}, {0: 50.0, 1: 50.0, 2: 80.0, 7: 1.0})
    assert found is not None
    assert found.value == pytest.approx(360 / 180)
    assert found.low < found.value < found.high
    assert found.low >= 140 / 80
    assert ratio({0: 1.0}, {1: 1.0}) is None


def rows_of(selector: str, cost: float, n: int, seeds: int = 5) -> list[dict[str, Any]]:
    """Records of one selector at one size."""
    bins = [{"groups": 1.0, "predicted": 0.05 + i / 10, "realised": i / 10} for i in range(10)]
    cell = {"world": "standard", "selector": selector, "n_tasks": n, "brier": 0.02, "brier_last_mean": 0.04}
    return [
        {**cell, "seed": seed, "rollouts": cost + seed, "calibration": bins, "reached": True}
        for seed in range(seeds)
    ]


def test_bars_follow_from_the_records_of_one_selector_at_every_size() -> None:
    rows: list[dict[str, Any]] = []
    for n in study.SIZES:
        rows += rows_of("uniform", 1_000, n) + rows_of("oracle", 400, n)
        rows += rows_of("bandit", 500, n)
        rows += rows_of("mopps", 400 if n == 1_000 else 900, n)  # best once is not best
    bars = {bar.name: bar for bar in study.sim_bars(rows)}
    assert bars["best_vs_uniform_rollouts_sim"].value == pytest.approx(1002 / 502)
    share = (1 - 502 / 1002) / (1 - 402 / 1002)
    assert bars["share_of_oracle_saving_4000"].value == pytest.approx(share)
    assert bars["brier_vs_last_mean"].value == pytest.approx(0.5)
    assert all(bar.holds for bar in bars.values())
    rows = [row for row in rows if (row["selector"], row["n_tasks"]) != ("bandit", 100_000)]
    assert best(rows, ["bandit"], [{"n_tasks": n} for n in study.SIZES]) == ("", 0.0)
    assert not any(bar.holds for bar in study.sim_bars([]))
    assert share_of_saving(rows, "uniform", "oracle", n_tasks=4_000) == pytest.approx(0.0)


def test_the_calibration_table_puts_seeds_together() -> None:
    lines = calibration(rows_of("bandit", 1, 4_000), "bandit", n_tasks=4_000).splitlines()
    assert len(lines) == 12
    assert lines[2] == "| 0.0 to 0.1 | 5 | 0.050 | 0.000 |"


def test_no_contender_of_the_bar_is_told_a_difficulty() -> None:
    assert set(study.ELIGIBLE) <= set(study.CONTENDERS)
    assert not any(study.CONTENDERS[name].difficulty for name in study.ELIGIBLE)
    assert not {"oracle", "uniform", "dapo_filter"} & set(study.ELIGIBLE)


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([(0, 0, 0.3), (5, 1000, 0.5), (10, 2000, 0.7)], (7.5, 1500.0)),
        ([(0, 0, 0.7)], (0, 0)),
        ([(0, 0, 0.3), (5, 1000, 0.59)], None),
        ([(0, 0, 0.3), (5, 1000, 0.6), (10, 2000, 0.5)], (5.0, 1000.0)),
    ],
)
def test_the_target_is_crossed_on_the_line_between_two_measurements(
    points: list[tuple[int, int, float]], found: tuple[float, float] | None
) -> None:
    assert grid.crossed(points, 0.6) == (None if found is None else pytest.approx(found))


@pytest.mark.slow
def test_every_cell_of_the_grid_is_a_valid_recipe_with_its_selector_and_pool(tmp_path: Path) -> None:
    for pool, terms in (("mixed", {3, 4, 5, 9, 12}), ("plain", {3, 4, 5})):
        cell = grid.Cell("uniform", 2, pool)
        recipe = load_recipe(grid.RECIPE, cell.changes(tmp_path / "model", tmp_path))
        assert isinstance(recipe, OnlineRecipe)
        assert {taskset.difficulty for taskset in recipe.tasks} == terms
        assert {taskset.heldout for taskset in recipe.tasks if taskset.difficulty > 5} <= {0.0}
        assert recipe.selector.use == "shuffle"
        assert recipe.seed == 2
        assert [stage.algorithm for stage in recipe.stages] == ["grpo"]
    load_recipe(grid.RECIPE, cell.preparation(tmp_path / "prepare"))


@pytest.mark.slow
def test_a_cell_of_the_grid_is_named_by_recipe_and_code() -> None:
    cells = [grid.Cell(*names) for names in (("uniform", 0), ("uniform", 1), ("difficulty", 0))]
    assert len({cell.recipe_hash for cell in cells}) == 3
    assert grid.Cell("uniform", 0).recipe_hash == cells[0].recipe_hash


def test_the_bars_of_the_grid_follow_each_from_the_records_of_its_pool() -> None:
    rows = [
        {"pool": pool, "selector": selector, "seed": seed, "rollouts": cost + seed}
        for pool, costs in (("mixed", (3000, 2000)), ("plain", (3000, 2800)))
        for selector, cost in zip(("uniform", "hierarchical"), costs, strict=True)
        for seed in range(3)
    ]
    mixed, plain = (grpo.grpo_bar(rows, pool) for pool in grid.POOLS)
    assert (mixed.name, plain.name) == tuple(f"best_vs_uniform_rollouts_grpo_{pool}" for pool in grid.POOLS)
    assert mixed.value == pytest.approx(3001 / 2001)
    assert plain.value == pytest.approx(3001 / 2801)
    assert mixed.holds
    assert not plain.holds
    assert not grpo.grpo_bar([], "mixed").holds


@pytest.mark.slow
def test_a_pool_has_its_bar_while_cells_of_the_other_are_missing(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl")
    for cell in grpo.cells(grid.Scale(), "vllm"):
        if cell.pool == "mixed" or cell.selector == "uniform":
            cost = 100 if cell.selector == "uniform" else 50
            told = {"pool": cell.pool, "selector": cell.selector, "seed": cell.seed, "rollouts": cost}
            records.append({**told, "recipe_hash": cell.recipe_hash})
    _, (mixed, plain) = grpo.report(records.path)
    assert mixed.value == 2
    assert plain.value is None


@pytest.mark.heavy
@pytest.mark.usefixtures("runs_here")
def test_a_tiny_cell_of_the_grid_runs_is_measured_and_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--engine", "transformers", "--only", "uniform,0,mixed"]
    arguments += ["--records", str(tmp_path / "r.jsonl"), "--root", str(tmp_path / "runs")]
    grpo.main([*arguments, "--minutes", "1"])
    assert "not started" in capsys.readouterr().out
    grpo.main(arguments)
    (record,) = Records(tmp_path / "r.jsonl").rows()
    assert [point[0] for point in record["curve"]] == [0, 1, 2]
    assert [point[1] for point in record["curve"]] == [0, 16, 32]
    assert record["rollouts"] == 32
    assert not record["reached"]
    printed = capsys.readouterr().out
    for pool in grid.POOLS:
        assert f'"name": "best_vs_uniform_rollouts_grpo_{pool}", "value": null' in printed, (
            "cells are missing"
        )
    grpo.main([*arguments, "--list"])
    assert not capsys.readouterr().out, "nothing of what was asked for is missing"
    grpo.main([*arguments, "--verify", "1"])
    assert '"name": "values_that_differ_when_repeated", "value": 0' in capsys.readouterr().out


def test_the_recipe_of_the_study_is_the_one_that_its_records_were_made_with() -> None:
    """Cells of `learning` and `selectors.grpo` do not hash how their supervised model was made."""
    said = load_recipe(grid.RECIPE).model_dump(mode="json", exclude_defaults=True)
    assert content_id(said) == "20247ca2d6feb2889031e39390b2f3bd", (
        "the records are of another recipe: run both grids again"
    )
