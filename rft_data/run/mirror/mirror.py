"""The run's folder on this machine, and the same on an object store: checkpoints, weights, log, summary.

The run works in the folder. `save` stores what is complete, then replaces the listing of what is stored, so a
reader of the store sees one moment of the folder. A later owner begins with what was stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rft_data.core.errors import BusyError, FencedError, RftError
from rft_data.core.failpoints import failpoint
from rft_data.core.files import MANIFEST_FILE, make_folder, write_text
from rft_data.core.lock import Lock
from rft_data.core.objects import PATIENT, Objects
from rft_data.core.scratch import working_folder
from rft_data.core.words import RunState
from rft_data.run.mirror.fetching import THREADS, complete, fetch_run
from rft_data.run.mirror.listing import OBJECTS, Listing, StoredFile
from rft_data.run.mirror.uploads import Uploads
from rft_data.run.record import LOG_FILE, RECORD_FILE, STOP_FILE, STORED_SILENT_S, read_record
from rft_data.weights.checkpoint import KEPT

log = logging.getLogger(__name__)

BEAT_S = 15.0
"""Seconds between two times that record and log are stored."""
STOP_OBJECT = "stop"
"""Object with the request of `rft stop` on another machine."""
_WRITTEN_ONCE = frozenset({"weights", "checkpoints", "model", "stages", "final", "best"})
"""Folders whose files do not change; of others, such as pictures, a copy is stored."""
_BEATEN = frozenset({RECORD_FILE, LOG_FILE})
"""Stored by themselves; other files, such as `progress.json`, may tell of what is not stored yet."""
_TRIES = 3


class Mirror:
    """The store's side of one run; the process that has it open is the run's owner."""

    def __init__(self, url: str) -> None:
        """Take the run over, and make this machine's folder what was stored.

        Raises: BusyError if another process of this machine has it open; StalledError if the store cannot be
            reached; IntegrityError if a stored file is damaged.
        """
        self._url = url.rstrip("/")
        self.folder = working_folder(url)
        """The folder on this machine."""
        make_folder(self.folder)
        self._lock = self._claim()
        self._saving, self._listed = threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-mirror", daemon=True)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        self._objects = Objects(self._url)
        self._listing = Listing(self._url, self._objects, create=True)
        self._listing.take_over()
        if self._objects.has(STOP_OBJECT):  # it was meant for a former owner
            self._objects.remove(STOP_OBJECT)
        self._stored = self._listing.files()
        self._patient = Objects(self._url, PATIENT)  # the store was there
        fetched = fetch_run(self.folder, self._stored, self._patient)
        self._left = fetched.left
        self._warn_of_owner()
        self._tidy()
        unfit = fetched.damaged | _BEATEN
        reused = {name: one for name, one in self._stored.items() if name not in unfit}
        self._uploads = Uploads(self.folder, self._listing.epoch, self._stored, reused)
        self._patient_listing = Listing(self._url, self._patient, epoch=self._listing.epoch)

    def _claim(self) -> Lock:
        try:
            return Lock(self.folder / ".mirror.lock")
        except BusyError as err:
            raise BusyError(
                f"the run at {self._url} is at work on this machine (in {self.folder}); wait for it, or end "
                f"it with: rft stop {self._url}"
            ) from err

    def _warn_of_owner(self) -> None:
        record = read_record(self.folder)
        if record is None or record.state not in (RunState.RUNNING, RunState.STOPPING):
            return
        since = time.time() - record.beat_at
        if since < STORED_SILENT_S:
            log.warning(
                "the run was at work %.0f s ago as process %d on %s. If that still runs, it is fenced from "
                "now on: it stores nothing more and ends with exit code 4",
                since,
                record.pid,
                record.host,
            )

    def check_owner(self) -> None:
        """Raises: FencedError if another process has taken the run over since."""
        self._listing.check_owner()

    def start(self) -> None:
        """Store everything once, and from now on record and log every 15 s."""
        self.save()
        self._thread.start()

    def save(self) -> None:
        """Store every file that is complete; returns when it is stored.

        While the store does not answer it is asked again for 5 minutes.
        Raises: FencedError if another process has taken the run over; StalledError if the store cannot be
            reached.
        """
        with self._saving, ThreadPoolExecutor(THREADS) as threads:
            self._patient_listing.check_owner()
            files = self._put_all(threads)
            with self._listed:
                files |= self._put_record(self._patient)
                if files == self._stored:
                    return
                failpoint("mirror.stored")
                self._patient_listing.replace(files)
                failpoint("mirror.listed")
                self._stored = files
                self._uploads.only(files, self._uploads.keys, self._objects)

    def close(self) -> None:
        """Store record and log, and let go of the folder; idempotent. A failure is logged."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            if self._stored:
                self._save_record()
        except (RftError, OSError) as err:
            log.warning("the end of the run's record and log is only in %s: %s", self.folder, err)
        finally:
            self._lock.release()

    # --- storing -----------------------------------------------------------------------------------

    def _put_all(self, threads: ThreadPoolExecutor) -> dict[str, StoredFile]:
        """Store every complete file but record and log. A file that goes meanwhile makes it begin again."""
        for left in reversed(range(_TRIES)):
            names = [name for name in complete(self.folder) if name not in _BEATEN]
            try:
                new = dict(zip(names, threads.map(self._put, names), strict=True))
            except FileNotFoundError:
                if not left:
                    raise
                continue
            break
        return new | self._kept_back()

    def _put(self, name: str) -> StoredFile:
        once = name.partition("/")[0] in _WRITTEN_ONCE
        store: Callable[[str, Objects], StoredFile] = self._uploads.fixed if once else self._uploads.growing
        return store(name, self._patient)

    def _kept_back(self) -> dict[str, StoredFile]:
        """Files of older checkpoints that are stored but not in the folder, until there are enough newer."""
        here = {path.parent.name for path in self.folder.glob(f"checkpoints/checkpoint-*/{MANIFEST_FILE}")}
        if len(here) >= KEPT:
            self._left = {}
        return {name: one for name, one in self._left.items() if name.split("/")[1] not in here}

    def _put_record(self, objects: Objects) -> dict[str, StoredFile]:
        names = [name for name in sorted(_BEATEN) if (self.folder / name).is_file()]
        return {name: self._uploads.growing(name, objects) for name in names}

    def _save_record(self) -> None:
        """Store record and log; of the others, what is stored stays."""
        with self._listed:
            self._listing.check_owner()
            new = self._put_record(self._objects)
            files = {**self._stored, **new}
            if files == self._stored:
                return
            self._listing.replace(files)
            replaced = {self._stored[name].key for name in new if name in self._stored}
            self._stored = files
            self._uploads.only(files, replaced, self._objects)

    def _beat(self) -> None:
        """Store record and log now and then, and look for a request to stop."""
        while not self._ended.wait(BEAT_S):
            try:
                self._save_record()
                if (request := self._objects.text(STOP_OBJECT)) is not None:
                    write_text(self.folder / STOP_FILE, request)  # in one step: the run looks every second
                    self._objects.remove(STOP_OBJECT)
            except FencedError as err:  # the buffer refuses the run's next write for the same reason
                log.error("%s", err)
                return
            except (RftError, OSError) as err:
                log.warning("%s", err)

    def _tidy(self) -> None:
        """Delete the objects that killed owners left behind."""
        listed = {self._listing.key, *(stored.key for stored in self._stored.values())}
        for key in self._objects.keys_below(OBJECTS):
            epoch = key.split("/")[1]
            if key not in listed and epoch.isdecimal() and int(epoch) < self._listing.epoch:
                self._objects.remove(key)
