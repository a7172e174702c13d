"""A folder of this machine made what is stored: every file whole, and checked against its digest."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rft_data.core.errors import IntegrityError
from rft_data.core.files import MANIFEST_FILE, file_digest
from rft_data.core.objects import Objects
from rft_data.run.mirror.listing import StoredFile
from rft_data.run.record import HUB_FILE, LOCK_FILE, LOG_FILE, STOP_FILE

log = logging.getLogger(__name__)

THREADS = 4
_DRAFTS = ".fetched"
"""Folder of files that are being fetched; a folder of weights is there only with whole files."""
_OWN = frozenset({HUB_FILE, LOCK_FILE, STOP_FILE})
"""Files about a process of this machine; `hub.json` holds a secret."""
_CHECKPOINT = re.compile(r"checkpoints/checkpoint-(\d+)/", re.ASCII)


def complete(folder: Path) -> Iterator[str]:
    """Names of a run's files, without drafts and without checkpoints that have no manifest yet.

    Other threads may make and delete files and folders meanwhile.
    """
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        parts = Path(at).relative_to(folder).parts
        if parts[:1] == ("checkpoints",) and not folder.joinpath(*parts[:2], MANIFEST_FILE).is_file():
            continue
        for name in sorted(names):
            if not name.startswith(".") and name not in _OWN and Path(at, name).is_file():
                yield "/".join((*parts, name))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Files of a run that are listed but not in the folder."""

    left: dict[str, StoredFile]
    """Files of older checkpoints, which were not needed."""
    damaged: set[str]
    """Names of the files of checkpoints of which one is not what was stored."""


def fetch_run(folder: Path, stored: Mapping[str, StoredFile], objects: Objects) -> Fetched:
    """Make the folder what is stored, with the newest checkpoint only: of older ones, if it is damaged.

    Raises: IntegrityError if another file is damaged, or all checkpoints are; StalledError; DiskFullError.
    """
    shutil.rmtree(folder / _DRAFTS, ignore_errors=True)
    for name in list(complete(folder)):
        if name not in stored:
            (folder / name).unlink()
    for path in sorted(folder.rglob("*/"), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()  # a version of weights is there if its folder is
    damaged: set[str] = set()
    left, checkpoints = _divided(stored)
    _fetch(folder, {name: one for name, one in stored.items() if name not in left}, objects)
    while checkpoints:
        names = checkpoints.pop()
        left -= set(names)
        try:
            _fetch(folder, {name: stored[name] for name in names}, objects)
            break
        except IntegrityError as err:
            if not checkpoints:
                raise
            log.warning("a stored checkpoint is damaged, an older one is taken: %s", err)
            _drop(folder, names)
            damaged |= set(names)
    for names in checkpoints:
        if not all(_is_here(folder / name, name, stored[name]) for name in names):
            _drop(folder, names)  # of another start, which went on otherwise
    return Fetched({name: stored[name] for name in left if not (folder / name).is_file()}, damaged)


def _drop(folder: Path, names: Sequence[str]) -> None:
    """Remove the local folder of a checkpoint, of whose files these are the names."""
    shutil.rmtree(folder.joinpath(*names[0].split("/")[:2]), ignore_errors=True)


def _divided(stored: Mapping[str, StoredFile]) -> tuple[set[str], list[list[str]]]:
    """The names of files of checkpoints, and the same by checkpoint, the newest last."""
    by_step: dict[int, list[str]] = {}
    for name in stored:
        if match := _CHECKPOINT.match(name):
            by_step.setdefault(int(match[1]), []).append(name)
    grouped = [by_step[step] for step in sorted(by_step)]
    return {name for names in grouped for name in names}, grouped


def _fetch(folder: Path, files: Mapping[str, StoredFile], objects: Objects) -> None:
    missing = [name for name, one in files.items() if not _is_here(folder / name, name, one)]
    if missing:
        log.info("fetching %d files of the run to %s", len(missing), folder)
    with ThreadPoolExecutor(THREADS) as threads:
        one = lambda name: fetch_file(objects, files[name], folder, name)  # noqa: E731
        for _ in threads.map(one, missing):
            pass


def fetch_file(objects: Objects, stored: StoredFile, folder: Path, name: str) -> None:
    """Write one stored file into a folder, whole or not at all.

    Raises: IntegrityError if the object is not what was stored.
    """
    target, draft = folder / name, folder / _DRAFTS / uuid.uuid4().hex
    for one in (target, draft):
        one.parent.mkdir(parents=True, exist_ok=True)
    try:
        objects.fetch(stored.key, draft)
        if draft.stat().st_size != stored.bytes or file_digest(draft) != stored.blake2b:
            raise IntegrityError(f"object {stored.key} of '{name}' is damaged: it is not what was stored.")
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)


def _is_here(path: Path, name: str, stored: StoredFile) -> bool:
    if not path.is_file():
        return False
    size = path.stat().st_size
    if name == LOG_FILE and size > stored.bytes:  # with lines of a start that was killed before a save
        with path.open("rb") as file:
            begin = file.read(stored.bytes)
        return hashlib.blake2b(begin, digest_size=16).hexdigest() == stored.blake2b
    return size == stored.bytes and file_digest(path) == stored.blake2b
