"""A run on an object store as commands see it: its folder, if it runs here, else a copy of a part."""

from __future__ import annotations

import atexit
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from rft_data.core.errors import StalledError
from rft_data.core.files import MANIFEST_FILE
from rft_data.core.objects import Objects
from rft_data.core.scratch import on_store, working_folder
from rft_data.core.words import StopRequest
from rft_data.run.mirror.listing import Listing, fetch_file
from rft_data.run.mirror.mirror import BEAT_S, STOP_OBJECT
from rft_data.run.record import COPY_FILE, ask_to_stop, held, standing

_TRIES = 3
"""The owner may replace a file between a look at the listing and the fetch of it."""


def run_folder(run_dir: str) -> Path:
    """A folder with what commands read of a run: itself, or for an object store record, log and manifests.

    Raises: MissingFileError if no run is stored there; StalledError if the store cannot be reached.
    """
    if not on_store(run_dir):
        return Path(run_dir)
    folder = working_folder(run_dir)
    if held(folder):
        return folder  # by a process of this machine: newer than what is stored
    return _copy(run_dir.rstrip("/"))


def stop_run(run_dir: str, *, now: bool) -> str:
    """Ask a run to stop, also one of another machine; returns what came of it.

    Raises: what `run_folder` and `ask_to_stop` raise.
    """
    folder = run_folder(run_dir)
    if not (folder / COPY_FILE).is_file():
        return ask_to_stop(folder, now=now)
    found = standing(folder)
    if not found.alive or found.record is None:
        return f"nothing to stop: the run is {found.state}" + (f" ({found.why})" if found.why else "")
    with TemporaryDirectory() as scratch:
        request = Path(scratch) / STOP_OBJECT
        request.write_text(StopRequest.NOW if now else StopRequest.DRAIN)
        Objects(run_dir.rstrip("/")).put(request, STOP_OBJECT)
    return f"process {found.record.pid} on {found.record.host} is asked to stop; it looks every {BEAT_S:g} s"


def _copy(url: str) -> Path:
    """Copy the files directly in the run's folder, and all manifests, until this process ends."""
    objects = Objects(url)
    listing = Listing(url, objects)
    for left in reversed(range(_TRIES)):
        target = Path(mkdtemp(prefix="rft-run-"))
        atexit.register(shutil.rmtree, target, ignore_errors=True)
        (target / COPY_FILE).write_text(url)
        try:
            for name, stored in listing.files().items():
                if "/" not in name or name.endswith(f"/{MANIFEST_FILE}"):
                    fetch_file(objects, stored, target / name)
        except StalledError:
            if not left:
                raise
            continue
        break
    return target
