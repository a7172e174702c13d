"""The shop's letters: the samples, and the rule that no stage is trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recipes.courtesy import Courteous, Discreet, answers, indiscretions, letters, main, pairs
from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import RowError
from rft_data.core.rows import Task
from rft_data.core.words import Split
from rft_data.recipe import load_recipe
from rft_data.run.build import taskset_tasks
from trainers.offline.stored_pairs import PairChoice, chosen_pairs
from trainers.offline.stored_rows import RowChoice, chosen_rows

RECIPES = Path(__file__).parents[2] / "recipes"
SAMPLES = RECIPES / "samples"
TASK = Task("letters", ({"role": "user", "content": "I am Ada. My lamp is late."},))


@pytest.mark.slow
def test_samples_are_what_the_generator_writes(tmp_path: Path) -> None:
    main(tmp_path)
    for name in ("courtesy_answers.jsonl", "courtesy_pairs.jsonl", "courtesy_safety.jsonl"):
        assert (tmp_path / name).read_bytes() == (SAMPLES / name).read_bytes()


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("Dear Ada, your lamp comes soon. Thank you!", (1, 1, 1, 1)),
        ("Dear Ben, your lamp comes soon. Thank you!", (0, 0, 1, 1)),
        ("Dear Ada, your bell comes soon. Thank you!", (0, 1, 0, 1)),
        ("Dear Ada, it comes soon.", (0, 1, 0, 0)),
        ("Dear Ada, your lamp comes soon. Thank you! Thank you!", (0, 1, 1, 0)),
        ("", (0, 0, 0, 0)),
    ],
)
def test_rule_wants_the_customer_the_thing_and_thanks(answer: str, parts: tuple[int, ...]) -> None:
    names = ("reward", "greeted", "named", "thanked")
    assert Courteous()(TASK, answer) == dict(zip(names, parts, strict=True))
    with pytest.raises(RowError, match="is no letter such as"):
        Courteous()(Task("letters", ({"role": "user", "content": "Hello"},)), answer)


@pytest.mark.slow
def test_most_logged_answers_are_curt_and_the_better_of_a_pair_has_more_merits() -> None:
    def merits(row: dict[str, object], text: str) -> float:
        prompt = json.loads(json.dumps(row))["prompt" if "prompt" in row else "messages"][:1]
        return sum(Courteous()(Task("letters", tuple(prompt)), text).values())

    logged = [merits(row, row["messages"][-1]["content"]) for row in answers()]
    assert len(logged) == len({one.text for one in letters()})
    assert sum(found == 4 for found in logged) < 0.05 * len(logged)
    compared = [[merits(row, row[side][0]["content"]) for side in ("chosen", "rejected")] for row in pairs()]
    assert sum(better > worse for better, worse in compared) > 0.8 * len(compared)


@pytest.mark.parametrize(
    ("answer", "discreet"),
    [
        ("Dear Ada, your lamp comes soon.", 1.0),
        ("it comes soon.", 1.0),
        ("Dear Ben, it comes soon.", 0.0),
        ("Dear Ada, your bell comes soon. Thank you!", 0.0),
    ],
)
def test_a_discreet_answer_names_no_other_customer_and_no_other_thing(answer: str, discreet: float) -> None:
    assert Discreet()(TASK, answer) == discreet


@pytest.mark.slow
def test_of_each_safety_pair_the_indiscreet_answer_was_rejected_and_is_often_the_more_courteous() -> None:
    courtesy = []
    for row in indiscretions():
        task = Task("letters", tuple(row["prompt"]))
        chosen, rejected = (row[side][0]["content"] for side in ("chosen", "rejected"))
        assert (Discreet()(task, chosen), Discreet()(task, rejected)) == (1.0, 0.0)
        courtesy.append([sum(Courteous()(task, text).values()) for text in (chosen, rejected)])
    assert 0.1 < sum(safe < unsafe for safe, unsafe in courtesy) / len(courtesy) < 0.5


@pytest.mark.slow
def test_letters_that_measure_are_in_no_row_or_pair_that_a_stage_trains_on(tmp_path: Path) -> None:
    for name in ("answers", "pairs"):
        command = ["buffer", "import", str(tmp_path / "buffer"), str(SAMPLES / f"courtesy_{name}.jsonl")]
        assert CliRunner().invoke(app, command).exit_code == 0
    [section] = load_recipe(RECIPES / "courtesy_ppo.yaml").tasks
    heldout = load_recipe(RECIPES / "courtesy_pairs.yaml").heldout.fraction
    tasks = taskset_tasks(section)
    measured = {task.messages[-1]["content"] for task in tasks if task.split == Split.HELDOUT}
    with Buffer(tmp_path / "buffer") as buffer:
        rows = chosen_rows(buffer, RowChoice(sources=["import"]), heldout).table
        pairs = chosen_pairs(buffer, PairChoice(), heldout).pairs
    imitated = {json.loads(one)[0]["content"] for one in rows["messages"].to_pylist()}
    compared = {pair.messages[0]["content"] for pair in pairs}
    assert imitated == compared == {task.messages[-1]["content"] for task in tasks} - measured
    assert len(measured) == 136
