"""How many explorers a running run is asked to have: a number in its folder, which the run looks at."""

from __future__ import annotations

import json
from pathlib import Path

from rft_data.core.errors import RecipeError
from rft_data.core.files import write_text
from rft_data.run.record import COPY_FILE, RECIPE_FILE, standing

SCALE_FILE = "run.explorers"


def ask_for_explorers(run_dir: Path, number: int) -> str:
    """Ask a run to have so many explorers, also when it is resumed; returns what comes of it.

    Raises: MissingFileError if the folder holds no run; RecipeError if the run cannot have so many.
    """
    state = standing(run_dir)
    if (run_dir / COPY_FILE).is_file():
        raise RecipeError(
            "the run is on an object store, and runs on another machine; call `rft scale` on that one."
        )
    recipe = json.loads((run_dir / RECIPE_FILE).read_text())
    count = recipe.get("placement", {}).get("explorers", {}).get("count", 1)
    if not isinstance(count, dict):
        raise RecipeError(
            f"the run in {run_dir} has 'placement.explorers.count' {count}, which does not change; start it "
            "with a range, such as {min: 1, max: 4}."
        )
    if not count["min"] <= number <= count["max"]:
        raise RecipeError(
            f"the run in {run_dir} may have {count['min']} to {count['max']} explorers "
            f"('placement.explorers.count'), and {number} were asked for; choose a number in between."
        )
    write_text(run_dir / SCALE_FILE, str(number))
    if not state.alive:
        return f"the run is {state.state}; it has up to {number} explorers when it is resumed"
    return f"the run has up to {number} explorers, as soon as there is room for them"


def explorers_asked(run_dir: Path) -> int | None:
    """How many were asked for last; None if it was not asked for, or cannot be read."""
    try:
        return int((run_dir / SCALE_FILE).read_text())
    except (OSError, ValueError):
        return None
