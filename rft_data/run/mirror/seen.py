"""A run on an object store as commands see it: its folder, if it runs here, else a copy of a part."""

from __future__ import annotations

import atexit
import math
import shutil
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from rft_data.core.errors import MissingFileError, RecipeError, StalledError
from rft_data.core.files import MANIFEST_FILE
from rft_data.core.objects import Objects
from rft_data.core.scratch import on_store, working_folder
from rft_data.core.words import StopRequest
from rft_data.run.mirror.fetching import fetch_file
from rft_data.run.mirror.listing import Listing, StoredFile
from rft_data.run.mirror.mirror import BEAT_S, STOP_OBJECT
from rft_data.run.record import COPY_FILE, ask_to_stop, held, standing

_TRIES = 3
"""The owner may replace a file between a look at the listing and the fetch of it."""


def run_folder(run_dir: str, *, age_s: float = 0.0) -> Path:
    """A folder with what commands read of a run: itself, or for an object store record, log and manifests.

    Args: age_s: so old a copy may be.
    Raises: MissingFileError if no run is stored there; StalledError if the store cannot be reached;
        RecipeError for a hub.
    """
    if not on_store(run_dir):
        return Path(run_dir)
    if run_dir.startswith("hub://"):
        raise RecipeError(
            f"'{run_dir}' is a hub, which `rft status`, `rft view` and `rft data feedback` take; give the "
            "run's folder or URL here."
        )
    folder = working_folder(run_dir)
    if held(folder):
        return folder  # by a process of this machine: newer than what is stored
    url = run_dir.rstrip("/")
    with _lock:
        if url not in _copies:
            _copies[url] = _Copy(url)
        _copies[url].renew(age_s)
        return _copies[url].folder


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


class _Copy:
    """The files directly in a run's folder, and all manifests, in a folder that goes with this process."""

    def __init__(self, url: str) -> None:
        self._url, self._objects = url, Objects(url)
        self._listing = Listing(url, self._objects)
        self._here: dict[str, StoredFile] = {}
        self._renewed_at = -math.inf
        self.folder = Path(mkdtemp(prefix="rft-run-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / COPY_FILE).write_text(url)

    def renew(self, age_s: float) -> None:
        """Fetch what has changed. Raises: MissingFileError if nothing is stored yet; StalledError."""
        if time.monotonic() - self._renewed_at < age_s:
            return
        for left in reversed(range(_TRIES)):
            try:
                self._renew()
            except StalledError:
                if not left:
                    raise
                continue
            self._renewed_at = time.monotonic()
            return

    def _renew(self) -> None:
        stored = self._listing.files()
        if not stored:
            raise MissingFileError(
                f"the run at {self._url} has stored nothing yet: it was refused or ended before its first "
                "save; its log is on the machine where it was started."
            )
        wanted = {
            name: one for name, one in stored.items() if "/" not in name or name.endswith(f"/{MANIFEST_FILE}")
        }
        for name in self._here.keys() - wanted.keys():
            (self.folder / name).unlink(missing_ok=True)
            del self._here[name]
        for name, one in wanted.items():
            if self._here.get(name) != one:
                fetch_file(self._objects, one, self.folder, name)
                self._here[name] = one


_lock = threading.Lock()
_copies: dict[str, _Copy] = {}
