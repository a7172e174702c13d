"""The showcase: what its runs change in the quickstart, RL's least lead over SFT, what choosing saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.selectors.records import Records
from benchmarks.showcase.__main__ import cells, main
from benchmarks.showcase.cells import RECIPE, SLOW, SUPERVISED, Cell, Scale, play
from benchmarks.showcase.verdicts import groups_bar, lead_bar, table
from rft_data.recipe import load_recipe


def saved(contender: str) -> dict[str, Any]:
    return load_recipe(RECIPE, Cell(contender, 0).changes(Path("root"))).saved()


@pytest.mark.slow
def test_the_runs_change_nothing_else_in_the_quickstart() -> None:
    whole = saved("rl")

    def changed(contender: str) -> set[str]:
        other = saved(contender)
        return {key for key in whole if whole[key] != other.get(key)} - {"name", "run_dir", "buffer"}

    assert changed("random") == {"selector"}
    assert changed("unfiltered") == {"experience_ops"}
    own = {name: {"experience_ops", "stages"} for name in SUPERVISED}
    assert {name: changed(name) for name in SUPERVISED} == {**own, "answers": own["sft"] | {"experts"}}
    assert whole["stages"] == load_recipe(RECIPE).saved()["stages"]


def test_supervised_runs_differ_in_epochs_and_in_what_they_are_shown() -> None:
    def stages(contender: str) -> list[tuple[int, bool]]:
        return [
            (stage["trl"]["num_train_epochs"], "slow_solution" in str(stage["data"]))
            for stage in saved(contender)["stages"][:-1]
        ]

    assert stages("sft") == [(2, False), (2, False), (2, False), (2, True), (6, True)]
    assert stages("slow") == [(3, True), (3, True), (6, True)]
    assert stages("answers") == [(8, False), (8, False), (16, False)]
    assert saved("sft")["stages"][-1]["steps"] == 1


def test_answers_alone_are_those_of_all_training_tasks_of_the_kinds_held_out() -> None:
    (expert,) = saved("answers")["experts"]
    assert expert["use"] == "recipes.arithmetic:short_answer"
    assert expert["tasksets"] == [tasks["name"] for tasks in saved("rl")["tasks"] if tasks["heldout"]]
    assert expert.get("limit") is None


def test_solutions_whose_steps_are_right_are_those_of_one_hand() -> None:
    experts = {expert["use"] for expert in saved("rl")["experts"]}
    named = SLOW["where"].split("'")[1]
    assert experts == {named, "recipes.arithmetic:fast_solution"}


@pytest.mark.slow
def test_a_cell_is_named_by_its_settings_and_code() -> None:
    some = [Cell("rl", 0), Cell("rl", 1), Cell("random", 0), Cell("sft", 0), Cell("slow", 0)]
    assert len({cell.recipe_hash for cell in some}) == 5
    assert Cell("rl", 0).recipe_hash == Cell("rl", 0).recipe_hash


def rows(seed: int, **ends: float) -> list[dict[str, Any]]:
    return [
        {"contender": name, "seed": seed, "start": 0.3, "end": end, "right_steps_end": 0.5,
         "groups": 100, "seconds": 60.0} for name, end in ends.items()
    ]  # fmt: skip


def test_the_bar_is_the_least_lead_over_the_best_supervised_run() -> None:
    found = [*rows(0, rl=0.8, sft=0.2, slow=0.2, answers=0.3)]
    found += rows(1, rl=0.7, sft=0.5, slow=0.65, answers=0.6)
    assert lead_bar(found, [0, 1], SUPERVISED).value == pytest.approx(5.0)
    assert lead_bar(found, [0], ["sft", "slow"]).value == pytest.approx(50.0), (
        "its own start is a supervised run too"
    )
    assert lead_bar(found, [0, 1, 2], SUPERVISED).value is None
    assert lead_bar(rows(0, rl=0.8, sft=0.1, slow=0.2), [0], SUPERVISED).value is None, "none on the answers"
    lines = table(found, ["rl", "random"]).splitlines()
    assert lines[2] == "| `rl` | 30.0%, 30.0% | 80.0%, 70.0% | 50.0%, 50.0% | 100, 100 | 60, 60 | 0, 1 |"
    assert lines[3].startswith("| `random` | not measured |")


def test_choosing_saves_the_least_of_what_it_saves_on_any_seed() -> None:
    groups = {"rl": [100, 300], "random": [200, 330], "sft": [7, 7]}
    found = [
        {"contender": name, "seed": seed, "groups": counts[seed]}
        for name, counts in groups.items() for seed in (0, 1)
    ]  # fmt: skip
    assert groups_bar(found, [0, 1]).value == pytest.approx(1.1)
    assert [groups_bar(found, [seed]).holds for seed in (0, 1)] == [True, False]
    assert groups_bar(found, [0, 1, 2]).value is None
    assert groups_bar([row for row in found if row["contender"] != "random"], [0, 1]).value is None


def test_cells_that_the_lead_is_read_from_come_first() -> None:
    order = [(cell.contender, cell.seed) for cell in cells(Scale(), "vllm")]
    assert order[0] == ("rl", 0)
    assert {name for name, _ in order[-6:]} == {"random", "unfiltered"}


@pytest.mark.heavy
@pytest.mark.usefixtures("runs_here")
def test_a_tiny_cell_runs_and_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--engine", "transformers", "--only", "rl,0", "--records", str(tmp_path / "r")]
    main([*arguments, "--root", str(tmp_path / "runs")])
    (record,) = Records(tmp_path / "r").rows()
    assert record["command"] == "python -m benchmarks.showcase --engine transformers --quick --only rl,0"
    assert record["groups"] == 2
    assert 0.0 <= record["right_steps_end"] <= 1.0
    printed = capsys.readouterr().out
    assert '"name": "rl_minus_best_sft_points", "value": null' in printed
    assert '"name": "random_over_rl_groups", "value": null' in printed


def test_of_several_supervised_stages_the_best_counts_and_of_rl_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracy = {"start": 0.0, "0-sft": 0.1, "1-sft": 0.7, "2-sft": 0.6, "final": 0.9}
    parts = {name: {"answer": 0.0, "a:RightSteps": value + 0.05} for name, value in accuracy.items()}
    summary = {"heldout_accuracy": accuracy, "heldout_parts": parts, "groups": {"admitted": 3}}
    monkeypatch.setattr("benchmarks.showcase.cells.rft_run", lambda *given: summary)
    sft, rl = (play(Cell(name, 0), tmp_path) for name in ("sft", "rl"))
    assert (sft["start"], sft["end"], sft["right_steps_end"]) == (0.1, 0.7, 0.75)
    assert (rl["start"], rl["end"], rl["right_steps_end"]) == (0.1, 0.9, pytest.approx(0.95))
