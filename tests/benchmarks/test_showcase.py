"""The showcase: cells are the quickstart with one change; the bar is RL's least lead over SFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.selectors.records import Records
from benchmarks.showcase.__main__ import cells, main
from benchmarks.showcase.cells import RECIPE, Cell, Scale
from benchmarks.showcase.verdicts import bar, table
from rft_data.recipe import load_recipe


def saved(contender: str) -> dict[str, Any]:
    return load_recipe(RECIPE, Cell(contender, 0).changes(Path("root"))).saved()


@pytest.mark.slow
def test_the_runs_differ_from_the_quickstart_in_one_part() -> None:
    whole = saved("rl")

    def changed(contender: str) -> set[str]:
        other = saved(contender)
        return {key for key in whole if whole[key] != other.get(key)} - {"name", "run_dir", "buffer"}

    assert changed("random") == {"selector"}
    assert changed("unfiltered") == {"experience_ops"}
    assert changed(f"sft-{8}") == {"experience_ops", "stages"}
    assert changed("worked-16") == {"experience_ops", "stages", "experts"}
    assert whole["stages"] == load_recipe(RECIPE).saved()["stages"]


@pytest.mark.slow
def test_a_cell_is_named_by_its_settings_and_code() -> None:
    some = [Cell("rl", 0), Cell("rl", 1), Cell("random", 0), Cell("sft-8", 0), Cell("worked-8", 0)]
    assert len({cell.recipe_hash for cell in some}) == 5
    assert Cell("rl", 0).recipe_hash == Cell("rl", 0).recipe_hash


def rows(seed: int, **ends: float) -> list[dict[str, Any]]:
    return [
        {"contender": name.replace("_", "-"), "seed": seed, "end": end, "right_steps_end": 0.5,
         "groups": 100, "seconds": 60.0} for name, end in ends.items()
    ]  # fmt: skip


def test_the_bar_is_the_least_lead_over_the_best_supervised_run() -> None:
    found = [*rows(0, rl=0.8, sft_4=0.3, sft_8=0.5), *rows(1, rl=0.7, sft_8=0.5, worked_16=0.6)]
    assert bar(found, [0, 1]).value == pytest.approx(10.0)
    assert bar(found, [0]).value == pytest.approx(30.0)
    assert bar(found, [0, 1, 2]).value is None
    lines = table(found, ["rl", "random"]).splitlines()
    assert lines[2] == "| `rl` | 80.0%, 70.0% | 50.0%, 50.0% | 100, 100 | 60, 60 | 0, 1 |"
    assert lines[3].startswith("| `random` | not measured |")


def test_cells_that_the_bar_is_read_from_come_first() -> None:
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
    assert '"name": "rl_minus_best_sft_points", "value": null' in capsys.readouterr().out
