"""Weights as folders: a model published as a version of the run, and the model that a run ends with.

The offline role writes them; nothing here reads a tensor.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from rft_data.core.failpoints import failpoint
from rft_data.core.files import fsync, read_manifest
from rft_data.core.rows import WeightRef
from rft_data.core.words import RunMilestone
from rft_data.run.folder import Run
from rft_data.run.parts import AnyModel
from rft_data.run.roles import OfflineCalls
from rft_data.weights.adapter import adapter_in
from rft_data.weights.served import ServedModel, publish_served
from rft_data.weights.versions import VersionRegistry

FINAL = RunMilestone.FINAL
"""The folder in the run's folder of the trained model, when its versions are adapters."""


def publish_folder(versions: VersionRegistry, offline: OfflineCalls, model: Path) -> WeightRef:
    """Make a Hugging Face folder a version of the run, as weights of no optimizer step."""
    header, draft = versions.header(0), versions.draft(0)
    return versions.finish(0, _write_whole(offline, model, draft, header))


def publish_model(versions: VersionRegistry, offline: OfflineCalls, model: AnyModel) -> WeightRef:
    """Publish a model that is a folder, or that an endpoint serves: then the version only names it."""
    if isinstance(model, ServedModel):
        return publish_served(versions, model)
    return publish_folder(versions, offline, model)


def trained_model(run: Run, offline: OfflineCalls) -> Path:
    """The folder of the run's last version; an adapter is merged into whole weights first, once.

    Raises: what the offline role raises; IntegrityError when the folder of an earlier start is damaged.
    """
    last = run.versions.published()[-1]
    if adapter_in(Path(last.path)) is None:
        return Path(last.path)
    final = run.directory / FINAL

    def merge() -> None:
        draft = run.directory / f".draft-{FINAL}"
        for leftover in (draft, final):  # of a start that was killed before this milestone was recorded
            shutil.rmtree(leftover, ignore_errors=True)
        draft.mkdir()
        header = {"run_id": run.run_id, "version": last.version, "step": last.step}
        _write_whole(offline, Path(last.path), draft, header)
        failpoint("final.written")
        draft.rename(final)
        fsync(run.directory)

    if not run.once(FINAL, merge):
        read_manifest(final)
    return final


def _write_whole(offline: OfflineCalls, model: Path, folder: Path, header: Mapping[str, object]) -> str:
    """Write a model, or an adapter with its base, as whole weights into an existing empty folder.

    Returns: the digest of the folder's manifest, which holds `header`.
    """
    arguments = {"model": str(model.absolute()), "directory": str(folder.absolute()), "header": dict(header)}
    digest: str = offline.call("publishable", str, **arguments)
    return digest
