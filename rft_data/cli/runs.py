"""`rft run` and `rft resume`: where a run goes, and what is printed when it is over."""

from __future__ import annotations

import logging
from pathlib import Path

from rft_data.errors import RecipeError
from rft_data.online import OnlineRun
from rft_data.recipe.sections import OnlineRecipe
from rft_data.report import next_steps, table

log = logging.getLogger(__name__)


def run_online(recipe: OnlineRecipe, recipe_path: str, *, fresh: bool) -> str:
    """Run or continue; returns the text for stdout."""
    directory, buffer = Path(recipe.run_dir), Path(recipe.buffer.uri)
    if fresh and directory.exists():
        if not buffer.resolve().is_relative_to(directory.resolve()):
            raise RecipeError(
                f"--fresh moves {directory} aside, but the buffer {buffer} is outside it and would keep "
                "the old run; give the run another 'name' instead."
            )
        aside = next(
            p
            for i in range(1, 10_000)
            if not (p := directory.with_name(f"{directory.name}.old-{i}")).exists()
        )
        directory.rename(aside)
        log.info("the earlier run is kept in %s", aside)
    log.info("run '%s' in %s (continue a stopped run with: rft resume %s)", recipe.name, directory, directory)
    summary = OnlineRun(recipe).execute()
    pictures = ", ".join(summary["pictures"])
    return "\n".join(
        [
            table(summary),
            f"pictures  {pictures}",
            f"summary   {directory / 'summary.json'}",
            "",
            next_steps(recipe_path, str(directory), str(buffer)),
        ]
    )
