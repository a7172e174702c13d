"""`rft run` and `rft resume`: where a run goes, and what is printed when it is over."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any, cast

from rft_data.buffer import Buffer
from rft_data.cli.edge import quiet
from rft_data.cli.progress import following
from rft_data.core.errors import RecipeError
from rft_data.core.scratch import on_store
from rft_data.core.version import __version__
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.conductor import conduct
from rft_data.run.start import run_recipe
from rft_data.run.summary_text import next_steps, table
from trainers.ranks.follower import served_torchrun

log = logging.getLogger(__name__)


def run_to_end(recipe: RunRecipe, again: str, *, as_json: bool = False, take_over: bool = False) -> str:
    """Run or continue; returns the text for stdout.

    Args: again: the command that names this recipe; empty if none does. as_json: the summary for programs.
        take_over: also a run that is at work on another machine.
    """
    directory, buffer, named = recipe.folder, recipe.buffer.uri, recipe.run_dir
    log.info("run '%s' in %s (continue a stopped run with: rft resume %s)", recipe.name, directory, named)
    with following(directory, quiet=quiet()):
        act = conduct if recipe.placement.use == "ray" else run_recipe
        summary = act(recipe, take_over=take_over)
    if as_json:
        return json.dumps(summary, indent=1)
    found = cast("dict[str, Any]", summary)
    return "\n".join(
        [
            f"run       {recipe.name} in {directory}, rft-data {__version__}",
            "",
            table(found),
            *([f"model     {found['model']}"] if "model" in found else []),
            *([f"pictures  {', '.join(found['pictures'])}"] if found.get("pictures") else []),
            f"summary   {directory / 'summary.json'}",
            "",
            next_steps(program(), again, named, buffer, found.get("buffer_rows", {})),
        ]
    )


def served_rank(recipe: RunRecipe) -> bool:
    """Under torchrun: whether this process was another rank of the run's trainer, and has served.

    Raises: RecipeError when torchrun started something that is one process, or another number of them.
    """
    if recipe.several_processes:
        return served_torchrun(recipe.placement.trainer.processes, recipe.deadlines.stage_s)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RecipeError(f"mode '{recipe.mode}' is one process; start it without torchrun.")
    return False


def move_aside(recipe: RunRecipe) -> None:
    """Rename an earlier run's folder so that the name is free.

    Raises: BusyError while another process runs it; RecipeError when its buffer is elsewhere.
    """
    directory, buffer = recipe.folder, Path(recipe.buffer.uri)
    if on_store(recipe.run_dir):
        raise RecipeError(
            f"--fresh renames a run's folder, and an object store cannot rename {recipe.run_dir}; give "
            "another 'run_dir' and 'buffer.uri'."
        )
    if not directory.exists():
        return
    if not buffer.resolve().is_relative_to(directory.resolve()):
        raise RecipeError(
            f"--fresh moves {directory} aside, but the buffer {buffer} is outside it and would keep "
            "the old run; give the run another 'name' instead."
        )
    Buffer(buffer).close()  # raises while another process owns it
    names = (directory.with_name(f"{directory.name}.old-{i}") for i in range(1, 1_000_000))
    aside = next(path for path in names if not path.exists())
    directory.rename(aside)
    log.info("the earlier run is kept in %s", aside)


def program() -> str:
    """How this command was called: `rft` when that is on PATH, else the path of the script."""
    return "rft" if shutil.which("rft") else sys.argv[0]
