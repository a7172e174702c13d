"""Stages that nothing imported or stored feeds are named before the run."""

import json
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.exchange.formats import import_into
from rft_data.recipe.kinds import with_model
from rft_data.recipe.load import load_recipe
from rft_data.recipe.recipe import Recipe
from rft_data.run.data_check import check_recipe_data, check_source
from rft_data.run.data_check.fed import unfed
from rft_data.run.deep_check import deep_problems
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.test_online import write_recipe as write_online

TASKS = [{"question": "1+1?", "answer": "2"}]
SOLVED = [{"question": "1+1?", "answer": "It is\n#### 2"}]
PAIRS = [{"prompt": "1+1?", "chosen": "2", "rejected": "3"}]
ANSWERS = [{"prompt": "1+1?", "completion": "2"}]
LABELS = [{"prompt": "1+1?", "completion": "2", "label": True}]


def recipe(folder: Path, stages: str, rows: list[dict[str, Any]] | None, *more: str) -> Recipe:
    given = [*more, f"stages={stages}"]
    if rows is not None:
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given.append(f"imports=[{{path: {folder}/rows.jsonl}}]")
    path = folder / "fed.yaml"
    path.write_text(
        f"recipe: 1\nname: fed\nmode: offline\nrun_dir: {folder}/run\nbuffer: {{uri: {folder}/buffer}}\n"
        f"model: {{path: {folder}/nowhere}}\nstages: [{{algorithm: dpo}}]\n"
    )
    return load_recipe(path, given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "rows", "said"),
    [
        (
            "[{algorithm: dpo}]",
            SOLVED,
            "stages.0: 'dpo' has nothing to train on: there is no stored preference pair to use",
        ),
        (
            "[{algorithm: reward_model}]",
            ANSWERS,
            "stages.0: 'reward_model' has nothing to train on: there is no stored preference",
        ),
        (
            "[{algorithm: dpo, data: {pairs: mined}}]",
            TASKS,
            "stages.0: 'dpo' has nothing to train on: no preference pair could be",
        ),
        ("[{algorithm: dpo, data: {pairs: mined}}]", ANSWERS, "and 1 experiences, of which 0 have a reward"),
        (
            "[{algorithm: sft, data: {}}]",
            TASKS,
            "'sft' has nothing to train on: there is no experience to train on",
        ),
        ("[{algorithm: sft, data: {min_reward: 1}}]", ANSWERS, "'sft' chooses rows by their score"),
        ("[{algorithm: kto}]", ANSWERS, "'kto' has nothing to train on: 'kto' chooses rows by their score"),
        ("[{algorithm: dpo}]", PAIRS, ""),
        ("[{algorithm: sft, data: {}}]", SOLVED, ""),
        ("[{algorithm: kto}]", LABELS, ""),
    ],
)
def test_imports_that_no_stage_can_train_on_are_named(
    stages: str, rows: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    found = [one for one in check_recipe_data(recipe(tmp_path, stages, rows)).problems if "stages." in one]
    assert [said in one for one in found] == ([True] if said else [])


@pytest.mark.slow
def test_held_out_pairs_are_needed_too(tmp_path: Path) -> None:
    given = recipe(tmp_path, "[{algorithm: sft, data: {}}]", SOLVED, "heldout={fraction: 0.5}")
    assert "heldout: 'heldout' measures" in check_recipe_data(given).problems[-1]


@pytest.mark.slow
def test_a_source_is_for_any_of_the_stages(tmp_path: Path) -> None:
    given = recipe(tmp_path, "[{algorithm: sft, data: {}}, {algorithm: dpo}]", PAIRS)
    source = str((tmp_path / "rows.jsonl").rename(tmp_path / "other.jsonl"))
    assert not any("stages." in one for one in check_source(source, recipe=given).problems)
    (tmp_path / "other.jsonl").write_text(json.dumps(TASKS[0]))
    found = check_source(source, recipe=given).problems
    assert [one[:8] for one in found if one.startswith("stages.")] == ["stages.0", "stages.1"]


def test_a_buffer_that_is_not_there_is_named_and_one_that_has_rows_feeds(tmp_path: Path) -> None:
    given = recipe(tmp_path, "[{algorithm: dpo}]", None)
    assert any(
        "there is no buffer at" in one.message and one.loc == ("buffer",) for one in deep_problems(given)
    )
    recipe(tmp_path, "[{algorithm: dpo}]", PAIRS)
    run = with_model(given)
    assert run is not None
    with Buffer(tmp_path / "buffer") as buffer:
        [lack] = unfed(run, [])
        assert lack.loc == ("stages", 0)
        assert lack.message.startswith("'dpo' has nothing to train on: there is no stored preference pair")
        import_into(buffer, tmp_path / "rows.jsonl")
        assert list(unfed(run, [])) == []


@pytest.mark.slow
def test_mined_pairs_need_groups_whose_rewards_differ(tmp_path: Path) -> None:
    run = with_model(recipe(tmp_path, "[{algorithm: dpo, data: {pairs: mined, margin: 0.5}}]", None))
    assert run is not None
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append([make_experience(0), make_experience(1)])
        [found] = unfed(run, [])
        assert "2 experiences, of which 2 have a reward. A pair needs a group with" in found.message
        buffer.append([make_experience(2, reward=0.4)])
        assert list(unfed(run, [])) == []


TRAIN = """\
recipe: 1
name: learning
mode: train
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
model: {{build: {{use: tiny_qwen2}}}}
explored_by: looking
group_size: 2
experience_ops: [grpo_advantage_mapper: {{}}]
stages: [{{algorithm: grpo, groups_per_step: 2, steps: 3}}]
"""


@pytest.mark.slow
def test_stored_groups_that_are_not_there_are_named_before_they_are_trained_on(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(TRAIN.format(root=tmp_path))
    given = load_recipe(tmp_path / "train.yaml")
    [lack] = deep_problems(given)
    assert lack.loc == ("buffer",)
    assert (
        "mode 'train' trains on groups that run 'looking' explored into it. Run that recipe" in lack.message
    )
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append([make_experience(0)])
    [lack] = deep_problems(given)
    assert lack.loc == ("explored_by",)
    assert "has no group of a run 'looking'; give the name of the recipe that explored" in lack.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "experts", "lacks"),
    [
        ("{}", False, True),
        ("{pairs: mined}", False, True),
        ("{pairs: mined}", True, False),
        ("{}", True, True),
    ],
)
def test_stages_before_exploring_need_rows_that_are_stored_or_that_experts_make(
    data: str, experts: bool, lacks: bool, tmp_path: Path
) -> None:
    solved = "experts=[{use: 'recipes.arithmetic:worked_solution', tasksets: [sums], limit: 4}]"
    stages = f"stages.0={{algorithm: dpo, data: {data}}}"
    run = with_model(
        load_recipe(write_online(tmp_path, steps=1), [stages, solved if experts else "~experts"])
    )
    assert run is not None
    assert [one.loc for one in unfed(run, [])] == [("stages", 0)] * lacks
    with Buffer(run.buffer.uri) as buffer:
        (tmp_path / "rows.jsonl").write_text(json.dumps(PAIRS[0]))
        import_into(buffer, tmp_path / "rows.jsonl")
    assert [one.loc for one in unfed(run, [])] == [("stages", 0)] * (lacks and "mined" in data)
