"""The model a run ends with, as a folder that transformers loads: its last version, merged if an adapter."""

from __future__ import annotations

import shutil
from pathlib import Path

from rft_data.core.failpoints import failpoint
from rft_data.core.files import fsync, read_manifest
from rft_data.core.protocols import Placement
from rft_data.core.words import RunMilestone
from rft_data.recipe.modes import RunRecipe
from rft_data.run.folder import Run
from rft_data.run.preparation import write_whole
from rft_data.weights.adapter import adapter_in

FOLDER = RunMilestone.FINAL.value
"""In the run's folder, when its versions are adapters."""


def trained_model(run: Run, recipe: RunRecipe, placement: Placement) -> Path:
    """Name the folder; an adapter is merged into whole weights first, unless a former start of the run did.

    Raises: what the offline role raises; IntegrityError when what a former start wrote is not whole any more.
    """
    last = run.versions.published()[-1]
    if adapter_in(Path(last.path)) is None:
        return Path(last.path)
    final = run.directory / FOLDER

    def merge() -> None:
        draft = run.directory / f".draft-{FOLDER}"
        for leftover in (draft, final):  # of a start that was killed before this phase was noted as done
            shutil.rmtree(leftover, ignore_errors=True)
        draft.mkdir()
        header = {"run_id": run.run_id, "version": last.version, "step": last.step}
        write_whole(recipe, placement, Path(last.path), draft, header)
        failpoint("final.written")
        draft.rename(final)
        fsync(run.directory)

    if not run.once(FOLDER, merge):
        read_manifest(final)
    return final
