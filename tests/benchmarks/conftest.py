"""Cells of recorded grids, run in this process."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import benchmarks.learning.cells
import benchmarks.selectors.cells
import benchmarks.showcase.cells
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe

_LOOK_S = 0.05


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells do without a process of their own, whose imports take longer than a tiny run."""

    def run(
        recipe: Path, changes: Sequence[str], folder: Path, look: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_S):
                look()

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            summary = run_recipe(load_recipe(recipe, changes))
        finally:
            over.set()
            watching.join()
        look()
        assert (folder / "summary.json").exists()
        return summary

    for cells in (benchmarks.learning.cells, benchmarks.showcase.cells, benchmarks.selectors.cells):
        monkeypatch.setattr(cells, "rft_run", run)
