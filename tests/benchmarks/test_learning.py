"""The learning grid: cells are valid recipes of their preset alone, verdicts follow from records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.learning.__main__ import OFF_POLICY, cells, main
from benchmarks.learning.cells import RECIPE, Cell, Scale, Variant, preset_modules
from benchmarks.learning.verdicts import bars, learned, noise, table
from benchmarks.selectors.records import Records
from rft_data.recipe import load_recipe
from rft_data.recipe.algorithms import ALGORITHMS
from rft_data.recipe.online import OnlineRecipe


def resolved(name: str, folder: Path) -> OnlineRecipe:
    recipe = load_recipe(RECIPE, Cell(name, 1).changes(folder / "model", folder / "teacher", folder))
    assert isinstance(recipe, OnlineRecipe)
    return recipe


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_preset_is_what_its_cell_trains_with(name: str, tmp_path: Path) -> None:
    recipe, preset = resolved(name, tmp_path), ALGORITHMS[name]
    (stage,) = recipe.stages
    assert stage.algorithm == name
    operators = [key for entry in recipe.experience_ops for key in entry]
    assert operators[1:] == [key for entry in preset.advantage for key in entry]
    assert recipe.explorer.group_size == preset.group_size
    assert stage.groups_per_step * preset.group_size == Scale().rows
    if preset.loss is None:
        assert stage.loss is None
        assert preset.trl_loss.items() <= stage.trl.items()
    else:
        assert stage.loss is not None
        assert stage.loss.use == preset.loss["use"]
    assert [dict(op) for op in stage.batch_ops] == [dict(op) for op in preset.batch_ops]
    assert bool(recipe.experts) == ("experts" in preset.needs)
    assert (stage.teacher is not None) == ("teacher" in preset.needs)


@pytest.mark.slow
def test_cells_of_a_seed_differ_in_what_their_preset_needs_and_nothing_else(tmp_path: Path) -> None:
    def rest(name: str) -> dict[str, Any]:
        tree = resolved(name, tmp_path).model_dump(mode="json")
        return {key: tree[key] for key in ("seed", "model", "tasks", "selector", "evaluation", "sync")}

    assert all(rest(name) == rest("grpo") for name in ("ppo", "mix", "on_policy_distill", "remax"))


@pytest.mark.slow
@pytest.mark.heavy
def test_a_cell_is_named_by_its_recipe_and_its_presets_code() -> None:
    one, seed, other = Cell("grpo", 0), Cell("grpo", 1), Cell("rloo", 0)
    stale, shuffled = Cell("grpo", 0, variant=Variant.STALE), Cell("grpo", 0, variant=Variant.SHUFFLED)
    assert len({cell.recipe_hash for cell in (one, seed, other, stale, shuffled)}) == 5
    assert one.recipe_hash == Cell("grpo", 0).recipe_hash
    assert preset_modules(ALGORITHMS["opmd"]) == {
        "ops.advantages.opmd_advantage_mapper",
        "trainers.policy.losses.mirror",
    }


def rows_of(
    name: str, pairs: list[tuple[float, float]], heldout: int = 450, variant: str = "plain"
) -> list[dict[str, Any]]:
    return [
        {
            "algorithm": name,
            "seed": seed,
            "variant": variant,
            "start": start,
            "end": end,
            "heldout": heldout,
        }
        for seed, (start, end) in enumerate(pairs)
    ]


def test_learning_is_more_than_the_noise_of_held_out_answers() -> None:
    rows = rows_of("grpo", [(0.5, 0.6), (0.5, 0.6)], heldout=100)
    # two seeds, of each two counts of a hundred answers
    assert noise(rows) == pytest.approx(2 * ((4 * 0.5 * 0.5 - 2 * 0.01) / 100) ** 0.5 / 2)
    assert learned(rows)
    assert not learned(rows_of("grpo", [(0.5, 0.59), (0.5, 0.59)], heldout=100))
    assert learned(rows_of("grpo", [(0.5, 0.7), (0.5, 0.7)], heldout=100))
    assert not learned([])
    # one seed gains 90 points, the other nothing: more than the noise of answers, but not of seeds
    assert noise(rows_of("grpo", [(0.1, 1.0), (0.1, 0.1)])) == pytest.approx(0.9)
    assert not learned(rows_of("grpo", [(0.1, 1.0), (0.1, 0.1)]))


def test_the_bar_counts_algorithms_that_learn() -> None:
    rows = [*rows_of("grpo", [(0.3, 0.6)]), *rows_of("ppo", [(0.3, 0.3)]), *rows_of("opmd", [(0.3, 0.2)])]
    names = ["grpo", "ppo", "opmd", "rec"]
    rows += rows_of("ppo", [(0.3, 0.6)], variant="stale")
    rows += rows_of("grpo", [(0.3, 0.31), (0.3, 0.29)], variant="shuffled")
    plain, stale, control, _ = bars(rows, {Variant.PLAIN: names, Variant.STALE: ["ppo", "grpo"]}, "grpo")
    assert (plain.name, plain.value) == ("algorithms_that_learn", 0.25)
    assert (stale.name, stale.value) == ("stale_algorithms_that_learn", 0.5)
    assert control.value == pytest.approx(0.0)
    assert control.holds
    learns = rows_of("grpo", [(0.3, 0.6)], variant="shuffled")
    assert not bars(learns, {Variant.PLAIN: names}, "grpo")[1].holds
    lines = table(rows, names).splitlines()
    assert lines[2] == "| `grpo` | 30.0% | 60.0% | +30.0 ± 6.3 | 0 | yes |"
    assert lines[3].endswith("| no |")
    assert lines[4].endswith("| no |")
    assert lines[5].endswith("| not measured |")
    assert [line.split("|")[1] for line in lines[6:]] == [" `grpo shuffled` ", " `ppo stale` "]


def test_the_least_lead_needs_every_algorithm_and_some_noise() -> None:
    def least(rows: list[dict[str, Any]]) -> float | None:
        return bars(rows, {Variant.PLAIN: ["grpo", "ppo"]}, "grpo")[-1].value

    control = rows_of("grpo", [(0.3, 0.31), (0.3, 0.29)], variant="shuffled")
    learners = [*rows_of("grpo", [(0.3, 0.6)]), *rows_of("ppo", [(0.3, 0.5)])]
    assert least([*control, *learners]) == pytest.approx(
        0.2 / (noise(control) ** 2 + noise(learners[1:]) ** 2) ** 0.5
    )
    assert least([*control, *learners[:1]]) is None, "ppo was not measured"
    assert least(learners) is None, "no control"
    nothing = [*rows_of("grpo", [(0.0, 0.0)], variant="shuffled"), *rows_of("grpo", [(0.0, 0.0)])]
    assert [bar.value for bar in bars(nothing, {Variant.PLAIN: ["grpo"]}, "grpo")] == [0.0, None, None]


def test_the_control_is_measured_by_how_far_its_own_runs_differ() -> None:
    names = {Variant.PLAIN: ["grpo"], Variant.STALE: ["ppo"]}
    learners = rows_of("grpo", [(0.3, 0.6), (0.3, 0.7)])
    learners += rows_of("ppo", [(0.3, 0.5), (0.3, 0.52)], variant="stale")

    def verdict(*ends: float) -> list[tuple[float | None, bool]]:
        control = rows_of("grpo", [(0.3, end) for end in ends], variant="shuffled")
        *_, in_noise, least = bars([*learners, *control], names, "grpo")
        assert (in_noise.name, least.name) == ("control_gain_in_noise", "least_lead_over_control_in_noise")
        return [(bar.value and pytest.approx(bar.value), bar.holds) for bar in (in_noise, least)]

    # gains of 20, -10, 5 and -3 points: mean 3, standard deviation 12.88, of four runs; those of ppo: 20 and
    # 22, which are nearer to each other than answers of chance are
    of_answers = 100 * (2 * 0.3 * 0.7 + 0.5 * 0.5 + 0.52 * 0.48) ** 0.5 / 450**0.5
    assert verdict(0.5, 0.2, 0.35, 0.27) == [(3 / 166**0.5, True), (18 / (166 + of_answers**2) ** 0.5, True)]
    # gains of 20, 22, 18 and 28 points: more than noise, and more than those of ppo
    assert [holds for _, holds in verdict(0.5, 0.52, 0.48, 0.58)] == [False, False]
    assert verdict() == [(None, False), (None, False)]


@pytest.mark.slow
def test_cells_go_seed_by_seed_and_recorded_ones_are_not_missing(tmp_path: Path) -> None:
    grid = cells(Scale.tiny(), "transformers")
    each = 1 + len(ALGORITHMS) + len(OFF_POLICY)
    assert [cell.seed for cell in grid] == [0] * each + [1] * each + [2, 3]
    assert len({cell.name for cell in grid}) == 2 * each + 2
    assert [cell.seed for cell in grid if cell.variant == Variant.SHUFFLED] == [0, 1, 2, 3]
    records = Records(tmp_path / "r.jsonl")
    records.append({"recipe_hash": grid[0].recipe_hash})
    records.append({"recipe_hash": "of older code"})
    assert records.missing(grid[:3]) == grid[1:3]


@pytest.mark.slow
def test_the_variants_change_rewards_or_the_age_of_rollouts(tmp_path: Path) -> None:
    def of(variant: Variant) -> Any:
        changes = Cell("dapo", 0, variant=variant).changes(tmp_path / "m", tmp_path / "t", tmp_path)
        return load_recipe(RECIPE, changes)

    plain, shuffled, stale = (of(variant) for variant in Variant)
    assert [next(iter(op)) for op in shuffled.experience_ops] == [
        "reward_range_filter",
        "benchmarks.learning.control:ShuffledRewardsMapper",
        *(next(iter(op)) for op in plain.experience_ops[1:]),
    ]
    assert (plain.sync.max_staleness, stale.sync.max_staleness, stale.sync.every) == (0, 4, 4)


def test_shuffled_rewards_are_those_of_the_group_in_another_order() -> None:
    from benchmarks.learning.control import ShuffledRewardsMapper

    rewards = [float(i % 7) for i in range(64)]
    table = pa.table(
        {
            "group_id": [f"g{i % 2}" for i in range(64)],
            "reward": pa.array(rewards, pa.float32()),
            "experience_id": [f"row {i}" for i in range(64)],
        }
    )
    dealt = ShuffledRewardsMapper().process_table(table)["shaped_reward"].to_pylist()
    assert dealt != rewards
    for group in (0, 1):
        assert sorted(dealt[group::2]) == sorted(rewards[group::2])
    assert abs(np.corrcoef(dealt, rewards)[0, 1]) < 0.25
    backwards = ShuffledRewardsMapper().process_table(table.take(list(range(63, -1, -1))))
    assert sorted(backwards["shaped_reward"].to_pylist()) == sorted(rewards)


@pytest.mark.heavy
@pytest.mark.usefixtures("runs_here")
def test_a_tiny_cell_runs_is_recorded_and_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--engine", "transformers", "--only", "opmd,0,plain"]
    arguments += ["--records", str(tmp_path / "r.jsonl"), "--root", str(tmp_path / "runs")]
    main([*arguments, "--minutes", "1"])
    assert "not started" in capsys.readouterr().out
    main(arguments)
    (record,) = Records(tmp_path / "r.jsonl").rows()
    assert (record["algorithm"], record["steps"], record["trained_rows"]) == ("opmd", 2, 32)
    assert (
        record["command"] == "python -m benchmarks.learning --engine transformers --quick --only opmd,0,plain"
    )
    printed = capsys.readouterr().out
    for name in ("algorithms_that_learn", "control_gain_in_noise", "least_lead_over_control_in_noise"):
        assert f'"name": "{name}", "value": null' in printed, "cells are missing"
    main([*arguments, "--list"])
    assert not capsys.readouterr().out, "nothing of what was asked for is missing"
