"""Running a cell in a process of its own."""

from pathlib import Path

import pytest

from benchmarks.grid import rft_run


@pytest.mark.slow
def test_a_run_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    recipe = tmp_path / "broken.yaml"
    recipe.write_text("recipe: 1\nmode: nonsense\n")
    with pytest.raises(RuntimeError, match=r"cell ended with 2:\n(.|\n)*nonsense"):
        rft_run(recipe, ["name=x"], tmp_path / "cell")
