"""The files of one folder as objects of one owner. An object is put once, under a key of its own.

So a put or a deletion that the store carries out late touches no other file.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from rft_data.core.errors import BusyError, RftError, StalledError
from rft_data.core.files import file_digest
from rft_data.core.objects import Objects
from rft_data.run.mirror.listing import OBJECTS, StoredFile

log = logging.getLogger(__name__)

_COPIES = ".stored"
"""Folder for copies of files that may change while they are stored."""
_TRIES = 3
_Facts = tuple[int, ...]
_Content = tuple[int, str]


class Uploads:
    """The files of a folder that are on the store. Safe to use from many threads."""

    def __init__(
        self, folder: Path, epoch: int, stored: Mapping[str, StoredFile], reused: Mapping[str, StoredFile]
    ) -> None:
        """Args: stored: the files that are listed, by name; reused: those whose content is not put again."""
        self._folder, self._epoch = folder, epoch
        self._numbers = itertools.count()
        self._seen: dict[str, tuple[_Facts, StoredFile]] = {}
        self._there: dict[_Content, StoredFile] = {(one.bytes, one.blake2b): one for one in reused.values()}
        self._keys = {one.key for one in stored.values()}
        shutil.rmtree(folder / _COPIES, ignore_errors=True)  # of a start that was killed

    def fixed(self, name: str, objects: Objects) -> StoredFile:
        """Store a file that is not written to any more, unless its content is there.

        Raises: StalledError; FileNotFoundError; BusyError if it is written to all the same.
        """
        path = self._folder / name
        for _ in range(_TRIES):
            facts = _facts(path)
            if known := self._known(name, facts):
                return known
            content = path.stat().st_size, file_digest(path)
            stored = self._there.get(content) or self._put(path, *content, objects)
            if _facts(path) == facts:
                self._there[content] = stored
                self._seen[name] = facts, stored
                return stored
        raise BusyError(
            f"{path} was written to while it was stored, {_TRIES} times; nothing may write to it."
        )

    def growing(self, name: str, objects: Objects) -> StoredFile:
        """Store a file as it is at this moment; it may be written to meanwhile.

        Raises: StalledError; FileNotFoundError.
        """
        path = self._folder / name
        facts = _facts(path)
        if known := self._known(name, facts):
            return known
        copies = self._folder / _COPIES
        copies.mkdir(exist_ok=True)
        copy = copies / str(next(self._numbers))
        try:
            shutil.copyfile(path, copy)
            stored = self._put(copy, copy.stat().st_size, file_digest(copy), objects)
        finally:
            copy.unlink(missing_ok=True)
        self._seen[name] = facts, stored
        return stored

    def _known(self, name: str, facts: _Facts) -> StoredFile | None:
        """The object of a file that has not changed since it was put; None if it has, or that is deleted."""
        seen = self._seen.get(name)
        return seen[1] if seen is not None and seen[0] == facts and seen[1].key in self._keys else None

    def _put(self, path: Path, size: int, digest: str, objects: Objects) -> StoredFile:
        key = f"{OBJECTS}/{self._epoch}/{next(self._numbers)}-{digest}"
        self._keys.add(key)
        try:
            objects.put(path, key)
        except StalledError:
            path.stat()  # it may be gone: that is not the store's fault
            raise
        return StoredFile(key, size, digest)

    def only(self, listed: Mapping[str, StoredFile], among: set[str], objects: Objects) -> None:
        """Delete those of `among` that are not listed; what cannot be deleted is left to the next owner."""
        kept = {one.key for one in listed.values()}
        for content, stored in list(self._there.items()):
            if stored.key in among - kept:
                del self._there[content]
        for key in sorted(among - kept):
            self._keys.discard(key)
            try:
                objects.remove(key)
            except RftError as err:
                log.warning("something old was not deleted: %s", err)

    @property
    def keys(self) -> set[str]:
        """Every object that was put or listed, and not deleted."""
        return set(self._keys)


def _facts(path: Path) -> _Facts:
    """Facts about a file that change with it."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
