"""The replay benchmark: what its bars count, and that its cells differ in the sampler alone."""

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay.__main__ import cells, main
from benchmarks.replay.cells import RECIPE, SAMPLERS, Cell, Scale
from benchmarks.replay.verdicts import bars, saved, spent, table, tokens_until
from benchmarks.selectors.records import Records
from rft_data.recipe import load_recipe


def row(sampler: str, tokens: float, seed: int = 0, ratio: float = 2.8, end: float = 0.8) -> dict[str, Any]:
    """A run that has 72 % of the answers right after so many tokens, and ends with `end` of them."""
    curve = [[0, 0, 0.2], [4, tokens, 0.72], [8, 2 * tokens, end]]
    return {"sampler": sampler, "seed": seed, "curve": curve, "samples_per_insert": ratio}


NEVER = row("replay", 300) | {"curve": [[0, 0, 0.2], [8, 300, 0.71]]}
"""It does not come to nine tenths of 0.8."""


def test_tokens_are_counted_until_the_accuracy_is_first_reached() -> None:
    curve = [[0, 0, 0.2], [4, 400, 0.4], [8, 800, 0.6], [9, 900, 0.5]]
    assert tokens_until(curve, 0.6) == pytest.approx(800)
    assert tokens_until(curve, 0.45) == pytest.approx(500)
    assert tokens_until(curve, 0.61) == math.inf
    assert tokens_until([[0, 0, 0.3], [4, 100, 0.1], [8, 200, 0.5]], 0.3) == 0


def test_both_samplers_have_to_come_to_nine_tenths_of_the_end_without_replay() -> None:
    assert spent([row("fifo", 900), row("replay", 300, end=0.9)], 0) == {
        "fifo": pytest.approx(900), "replay": pytest.approx(300)
    }  # fmt: skip
    assert spent([row("fifo", 900, end=0.7), row("replay", 300)], 0)["replay"] < 300
    assert spent([row("replay", 300)], 0) == {}


def test_the_bar_is_the_least_saving_of_the_seeds() -> None:
    rows = [
        row("fifo", 900),
        row("replay", 300),
        row("fifo", 450, 1),
        row("replay", 300, 1),
        row("fifo", 9, 2),
    ]
    assert saved(rows) == {0: pytest.approx(3), 1: pytest.approx(1.5)}
    assert [(bar.value, bar.holds) for bar in bars(rows)] == [(pytest.approx(1.5), True), (2.8, True)]
    assert not bars([*rows, row("replay", 300, 2, ratio=2.6)])[1].holds
    assert saved([row("fifo", 900), NEVER]) == {0: 0.0}, "a run that is never as good has saved nothing"
    assert [bar.value for bar in bars([])] == [None, None]


def test_the_table_has_a_line_for_each_run() -> None:
    lines = table([NEVER, row("fifo", 900, ratio=1.0)]).splitlines()
    assert lines[2] == "| `fifo` | 0 | 20.0% | 80.0% | 8 | 1,800 | 900 | 1.00 |"
    assert lines[3] == "| `replay` | 0 | 20.0% | 71.0% | 8 | 300 | never | 2.80 |"


def test_cells_of_a_seed_differ_in_the_sampler_and_the_steps_alone(tmp_path: Path) -> None:
    quickstart = load_recipe(RECIPE).model_dump(mode="json")
    plain, replay = (
        load_recipe(RECIPE, Cell(name, 0).changes(tmp_path / "model", tmp_path)).model_dump(mode="json")
        for name in SAMPLERS
    )
    own = {"name", "run_dir", "buffer"}
    assert {key for key in plain if plain[key] != replay[key]} - own == {"sampler", "stages"}
    assert {key for key in plain if plain[key] != quickstart[key]} - own == {
        "model", "experts", "stages", "evaluation"
    }  # fmt: skip
    [one], [other] = plain["stages"], replay["stages"]
    assert {key for key in one if one[key] != other[key]} == {"steps", "checkpoint_every"}
    assert {key for key in one if one[key] != quickstart["stages"][1][key]} == {"checkpoint_every"}


@pytest.mark.slow
def test_a_cell_is_named_by_its_settings_and_its_model_by_seed_and_engine() -> None:
    grid = cells(Scale(), "vllm", 2)
    assert len({cell.recipe_hash for cell in grid}) == len(grid) == 2 * len(SAMPLERS)
    assert len({cell.model_hash for cell in grid}) == 2


@pytest.mark.heavy
@pytest.mark.usefixtures("runs_here")
def test_a_tiny_cell_runs_and_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--engine", "transformers", "--only", "replay,0"]
    main([*arguments, "--records", str(tmp_path / "r"), "--root", str(tmp_path / "runs")])
    (record,) = Records(tmp_path / "r").rows()
    assert [step for step, _, _ in record["curve"]] == [0, 1, 2, 3]
    assert record["curve"][0][1] == 0 < record["curve"][-1][1]
    assert record["samples_per_insert"] > 1
    assert '"name": "tokens_saved_by_replay", "value": null' in capsys.readouterr().out, "cells are missing"
