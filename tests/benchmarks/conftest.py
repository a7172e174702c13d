"""Cells of recorded grids, run in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import benchmarks.learning.cells
import benchmarks.showcase.cells
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells do without a process of their own, whose imports take longer than a tiny run."""

    def run(recipe: Path, changes: Sequence[str], folder: Path) -> dict[str, Any]:
        summary = run_recipe(load_recipe(recipe, changes))
        assert (folder / "summary.json").exists()
        return summary

    for cells in (benchmarks.learning.cells, benchmarks.showcase.cells):
        monkeypatch.setattr(cells, "rft_run", run)
