"""The point at which a start of a recipe would continue, as its run's folder shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rft_data.core.files import MANIFEST_FILE
from rft_data.core.scratch import on_store, working_folder
from rft_data.core.words import RunState
from rft_data.recipe.kinds import (
    that_measures,
    that_only_explores,
    that_only_trains_on_stored,
    with_reinforcement,
)
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.folder import unlike
from rft_data.run.offline_stages import stage_name
from rft_data.run.record import RECIPE_FILE
from rft_data.run.status import RunStatus, run_status, stored_recipe


def folder_line(recipe: RunRecipe) -> str:
    """Content of the run's folder, and where a start of this recipe would continue."""
    folder = working_folder(recipe.run_dir)
    if on_store(recipe.run_dir):
        return f"'{recipe.run_dir}', which is not looked at here; the run works in '{folder}'"
    if not (folder / RECIPE_FILE).is_file():
        return f"'{folder}' holds no run: this would be its first start"
    found = run_status(folder)
    words = f"'{folder}' holds a run ({found.standing.state})"
    if found.standing.alive:
        return f"{words}: a second start of it is refused; rft status {folder}"
    if other := unlike(stored_recipe(folder), recipe):
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        return (
            f"{words} of another recipe, which this one cannot continue ({other[0]}{more}): give another "
            "'name' and 'run_dir', or start over with --fresh"
        )
    if found.standing.state == RunState.FINISHED and not _grows(recipe, found):
        return f"{words}: a start shows its summary, and trains nothing"
    return f"{words}; a start goes on {'; '.join(_taken_up(recipe, found, folder))}"


def _grows(recipe: RunRecipe, found: RunStatus) -> bool:
    """Whether the recipe asks for more than the run has done."""
    if (training := with_reinforcement(recipe)) is not None and found.steps is not None:
        return training.rl.steps > found.steps
    explores = that_only_explores(recipe)
    return explores is not None and found.groups is not None and explores.groups > found.groups[1]


def _taken_up(recipe: RunRecipe, found: RunStatus, folder: Path) -> Iterator[str]:
    """The point at which the run would continue, and the parts that it has already."""
    done = _done(folder)
    names = [stage_name(number, stage) for number, stage in enumerate(recipe.offline_stages)]
    if open_stages := [name for name in names if name not in done]:
        yield f"with stage {open_stages[0]}, {_stage_begin(folder, open_stages[0])}"
        return
    if that_only_trains_on_stored(recipe) is not None:
        yield "with what is measured and published after the last stage"
        return
    if that_measures(recipe) is not None:
        yield f"with the models that are not measured yet ({len(done)} are)"
        return
    if found.groups is not None:
        yield f"after {found.groups[0]:,} of {found.groups[1]:,} groups"
        return
    training = with_reinforcement(recipe)
    of = "" if training is None else f" of {training.rl.steps:,} steps"
    if found.checkpoint is None:
        yield f"with the first optimizer step{of}"
    else:
        yield f"from checkpoint {found.checkpoint[0]}{of}"
        lost = 0 if found.progress is None else found.progress.step - found.checkpoint[0]
        if lost > 0:
            yield f"{lost} later steps are taken again"
    rows = found.rows.get("experiences", 0)
    if rows:
        yield f"{rows:,} stored rows stay in the buffer"


def _stage_begin(folder: Path, name: str) -> str:
    """The step at which an offline stage that had begun would continue."""
    found = (folder / "stages" / f"{name}.checkpoints").glob(f"checkpoint-*/{MANIFEST_FILE}")
    steps = [int(step) for one in found if (step := one.parent.name.rpartition("-")[2]).isdecimal()]
    return f"from its checkpoint of step {max(steps)}" if steps else "from its beginning"


def _done(folder: Path) -> list[str]:
    """The phases that are completed."""
    try:
        return list(json.loads((folder / "progress.json").read_text()).get("done", []))
    except (OSError, ValueError):
        return []
