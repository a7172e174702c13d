"""The replay benchmark: what its bars count, and that its cells differ in the sampler alone."""

from pathlib import Path

import pytest

from benchmarks.replay.cells import RECIPE, SAMPLERS, Cell
from benchmarks.replay.verdicts import bars, saved, table, tokens_until
from rft_data.recipe import load_recipe


def row(sampler: str, curve: list[list[float]], ratio: float = 2.8) -> dict[str, object]:
    return {"sampler": sampler, "seed": 0, "curve": curve, "samples_per_insert": ratio}


PLAIN = row("fifo", [[0, 0, 0.2], [4, 400, 0.4], [8, 800, 0.6]], 1.0)
REPLAY = row("replay", [[0, 0, 0.2], [4, 200, 0.5], [8, 300, 0.7]])


def test_tokens_are_counted_until_the_accuracy_is_first_reached() -> None:
    assert tokens_until(PLAIN["curve"], 0.6) == pytest.approx(800)
    assert tokens_until(REPLAY["curve"], 0.6) == pytest.approx(250)
    assert tokens_until(REPLAY["curve"], 0.71) is None
    assert tokens_until([[0, 0, 0.3], [4, 100, 0.1], [8, 200, 0.5]], 0.3) == 0


def test_a_run_with_replay_that_is_never_as_good_has_saved_nothing() -> None:
    assert saved([PLAIN, REPLAY], 0) == pytest.approx(800 / 250)
    assert saved([PLAIN, row("replay", [[0, 0, 0.2], [8, 300, 0.59]])], 0) == 0
    assert saved([REPLAY], 0) is None
    assert [bar.holds for bar in bars([PLAIN, REPLAY])] == [True, True]
    assert [bar.value for bar in bars([])] == [None, None]
    assert table([PLAIN, REPLAY]).splitlines()[-1].endswith("| 300 | 250 | 2.80 (3) |")


def test_cells_of_a_seed_differ_in_the_sampler_and_the_steps_alone(tmp_path: Path) -> None:
    plain, replay = (
        load_recipe(RECIPE, Cell(name, 0).changes(tmp_path / "model", tmp_path)).model_dump(mode="json")
        for name in SAMPLERS
    )
    assert {key for key in plain if plain[key] != replay[key]} == {
        "name",
        "run_dir",
        "buffer",
        "sampler",
        "stages",
    }
    [one], [other] = plain["stages"], replay["stages"]
    assert {key for key in one if one[key] != other[key]} == {"steps"}
