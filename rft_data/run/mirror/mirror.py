"""The run's folder on this machine, and the same on an object store: checkpoints, weights, log, summary.

The run works in the folder. `save` stores what is complete, then replaces the listing of what is stored, so a
reader of the store sees one moment of the folder. A later owner begins with what was stored.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rft_data.core.errors import BusyError, FencedError, RftError
from rft_data.core.failpoints import failpoint
from rft_data.core.files import MANIFEST_FILE, file_digest, make_folder, write_text
from rft_data.core.lock import Lock
from rft_data.core.objects import Objects
from rft_data.core.scratch import working_folder
from rft_data.run.mirror.listing import OBJECTS, Listing, StoredFile, fetch_file
from rft_data.run.record import HUB_FILE, LOCK_FILE, LOG_FILE, STOP_FILE

log = logging.getLogger(__name__)

BEAT_S = 15.0
"""Seconds between two times that record and log are stored."""
STOP_OBJECT = "stop"
"""Object with the request of `rft stop` on another machine."""
_THREADS = 4
_WRITTEN_ONCE = frozenset({"weights", "checkpoints", "model", "stages", "final", "best"})
"""Folders whose files do not change; of others, such as the log, a copy is stored."""
_OWN = frozenset({HUB_FILE, LOCK_FILE, STOP_FILE})
"""Files about a process of this machine; `hub.json` holds a secret."""


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
        self._saving = threading.Lock()
        self._seen: dict[str, tuple[tuple[int, ...], StoredFile]] = {}
        self._by_content: dict[tuple[int, str], StoredFile] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-mirror", daemon=True)
        try:
            self._objects = Objects(self._url)
            self._listing = Listing(self._url, self._objects, create=True)
            self._listing.take_over()
            self._stored = self._listing.files()
            self._fetch()
            self._tidy()
        except BaseException:
            self._lock.release()
            raise

    def _claim(self) -> Lock:
        try:
            return Lock(self.folder / ".mirror.lock")
        except BusyError as err:
            raise BusyError(
                f"the run at {self._url} is at work on this machine (in {self.folder}); wait for it, or end "
                f"it with: rft stop {self._url}"
            ) from err

    def start(self) -> None:
        """Store everything once, and from now on record and log every 15 s."""
        self.save()
        self._thread.start()

    def save(self) -> None:
        """Store every file that is complete; returns when it is stored.

        Raises: FencedError if another process has taken the run over; StalledError if the store cannot be
            reached.
        """
        self._save(lambda name: True)

    def close(self) -> None:
        """Store record and log, and let go of the folder; idempotent. A failure is logged."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            if self._stored:
                self._save(_at_top)
        except RftError as err:
            log.warning("the end of the run's record and log is only in %s: %s", self.folder, err)
        self._lock.release()

    # --- storing -----------------------------------------------------------------------------------

    def _save(self, chosen: Callable[[str], bool]) -> None:
        """Store the files whose names are chosen; of the others, what is stored stays."""
        with self._saving, ThreadPoolExecutor(_THREADS) as threads:
            names = [name for name in _complete(self.folder) if chosen(name)]
            self._by_content = {(one.bytes, one.blake2b): one for one in self._stored.values()}
            new = dict(zip(names, threads.map(self._put, names), strict=True))
            files = {name: stored for name, stored in self._stored.items() if not chosen(name)} | new
            if files == self._stored:
                return
            failpoint("mirror.stored")
            self._listing.replace(files)
            failpoint("mirror.listed")
            kept = {stored.key for stored in files.values()}
            gone = {stored.key for stored in self._stored.values()} - kept
            self._stored = files
            for _ in threads.map(self._objects.remove, sorted(gone)):
                pass

    def _put(self, name: str) -> StoredFile:
        """Store one file, unless its content is stored."""
        path = self.folder / name
        facts = _facts(path)
        known = self._seen.get(name)
        if known is not None and known == (facts, self._stored.get(name)):
            return known[1]
        copy = self.folder / f".stored-{name.replace('/', '+')}"
        source = path if name.partition("/")[0] in _WRITTEN_ONCE else shutil.copyfile(path, copy)
        try:
            stored = self._object(source)
        finally:
            copy.unlink(missing_ok=True)
        self._seen[name] = (facts, stored)
        return stored

    def _object(self, source: Path) -> StoredFile:
        size, digest = source.stat().st_size, file_digest(source)
        if (there := self._by_content.get((size, digest))) is not None:
            return there
        key = f"{OBJECTS}/{self._listing.epoch}/{digest}"
        self._objects.put(source, key)
        return StoredFile(key, size, digest)

    def _beat(self) -> None:
        """Store record and log now and then, and look for a request to stop."""
        while not self._ended.wait(BEAT_S):
            try:
                self._save(_at_top)
                if (request := self._objects.text(STOP_OBJECT)) is not None:
                    write_text(self.folder / STOP_FILE, request)  # in one step: the run looks every second
                    self._objects.remove(STOP_OBJECT)
            except FencedError as err:  # the buffer refuses the run's next write for the same reason
                log.error("%s", err)
                return
            except RftError as err:
                log.warning("%s", err)

    # --- fetching ----------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Make the folder what is stored."""
        for name in list(_complete(self.folder)):
            if name not in self._stored:
                (self.folder / name).unlink()
        for path in sorted(self.folder.rglob("*/"), reverse=True):
            if not any(path.iterdir()):
                path.rmdir()  # a version of weights is there if its folder is
        missing = [name for name in self._stored if not self._is_here(name)]
        if missing:
            log.info("fetching %d files of the run from %s to %s", len(missing), self._url, self.folder)
        with ThreadPoolExecutor(_THREADS) as threads:
            one = lambda name: fetch_file(self._objects, self._stored[name], self.folder / name)  # noqa: E731
            for _ in threads.map(one, missing):
                pass

    def _is_here(self, name: str) -> bool:
        path, stored = self.folder / name, self._stored[name]
        if not path.is_file():
            return False
        if name == LOG_FILE and path.stat().st_size > stored.bytes:
            return True  # lines of a start of this machine that was killed before they were stored
        return path.stat().st_size == stored.bytes and file_digest(path) == stored.blake2b

    def _tidy(self) -> None:
        """Delete the objects that killed owners left behind."""
        listed = {self._listing.key, *(stored.key for stored in self._stored.values())}
        for key in self._objects.keys_below(OBJECTS):
            if key not in listed and int(key.split("/")[1]) < self._listing.epoch:
                self._objects.remove(key)


def _at_top(name: str) -> bool:
    """Whether a file is directly in the run's folder, as its record and its log are."""
    return "/" not in name


def _complete(folder: Path) -> Iterator[str]:
    """Names of a run's files, without drafts and without checkpoints that have no manifest yet."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or parts[-1] in _OWN or not path.is_file():
            continue
        if parts[0] == "checkpoints" and not (folder / parts[0] / parts[1] / MANIFEST_FILE).is_file():
            continue
        yield "/".join(parts)


def _facts(path: Path) -> tuple[int, ...]:
    """What changes with a file."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
