"""Subjects of the page: run folders and buffers, each under a short key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import cast

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, MissingFileError
from rft_data.core.scratch import on_hub, on_store
from rft_data.run.mirror import run_folder
from rft_data.run.record import RECIPE_FILE
from rft_data.run.seen_by_hub import hub_copy, shown_buffer
from rft_data.run.status import open_buffer, stored_recipe
from rft_data.web.claims import Claims

_COPY_AGE_S = 15.0
"""A run stores its record so often on an object store; what is shown of it may be so old twice."""
_HUB_AGE_S = 1.0
"""Requests of one look at a page share what a hub said."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run with its buffer, or a buffer alone."""

    key: str
    """Its name in links."""
    where: str
    """Folder or URL."""
    run_dir: Path | None
    """None: a buffer alone. Of a run on an object store, or behind a hub, a copy of its small files."""


class Subjects:
    """The subjects of one page, and their buffers, opened for reading when they are first asked for."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Args: paths: run folders, folders of runs, and buffers.

        Raises: MissingFileError when one of them is none of these.
        """
        found = [pair for path in paths for pair in _inside(path)]
        self._by_key: dict[str, Subject] = {}
        for where, run_dir in dict(found).items():
            key = self._new_key(_hub_name(run_dir) if on_hub(where) else Path(where).name)
            self._by_key[key] = Subject(key, where, run_dir)
        self._buffers: dict[str, Buffer] = {}
        self._marks: dict[str, tuple[int, ...]] = {}
        self._claims: dict[str, Claims] = {}
        self._lock = Lock()

    def __iter__(self) -> Iterator[Subject]:
        return iter(self._by_key.values())

    def __getitem__(self, key: str) -> Subject:
        """Raises: MissingFileError when there is none with this key; StalledError if its store is away."""
        if key not in self._by_key:
            raise MissingFileError(f"this page shows no '{key}'; it shows {', '.join(self._by_key)}.")
        subject = self._by_key[key]
        if subject.run_dir is None or not on_store(subject.where):
            return subject
        if on_hub(subject.where):
            return replace(subject, run_dir=hub_copy(subject.where, age_s=_HUB_AGE_S))
        return replace(subject, run_dir=run_folder(subject.where, age_s=_COPY_AGE_S))

    def add(self, folder: Path) -> None:
        """Show one more run, also before it wrote anything."""
        with self._lock:
            key = self._new_key(folder.name)
            self._by_key = {**self._by_key, key: Subject(key, str(folder), folder)}

    def buffer(self, key: str) -> Buffer:
        """The subject's buffer, which stays open for reading.

        Raises: MissingFileError when the run has none yet, or its buffer is another machine's; ConflictError,
        once, when another buffer took its place meanwhile: the next request opens that one.
        """
        subject = self[key]
        with self._lock:
            if key in self._buffers and _mark(self._buffers[key]) != self._marks[key]:
                place = self._forget(key)
                raise ConflictError(
                    f"the buffer at {place} is gone, or another one took its place, since this page opened "
                    "it: row numbers and links of before may mean something else now. Load the page again to "
                    "see what is there."
                )
            if key not in self._buffers:
                opened = _opened(subject)
                if opened is None:
                    raise MissingFileError(
                        f"run '{key}' has no buffer here: it has not begun, or its recipe names a folder "
                        "of another place (give that as well)."
                    )
                self._buffers[key], self._marks[key] = opened, _mark(opened)
            return self._buffers[key]

    def claims(self, key: str) -> Claims:
        """The claims on items of the subject's buffer. Raises: as `buffer`."""
        location = self.buffer(key).location
        with self._lock:
            return self._claims.setdefault(key, Claims(location))

    def _forget(self, key: str) -> str:
        """Let go of a buffer, which a request may still be reading; returns where it was."""
        claims = self._claims.pop(key, None)
        if claims is not None:
            claims.close()
        return self._buffers.pop(key).location

    def __enter__(self) -> Subjects:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the buffers."""
        with self._lock:
            for buffer in self._buffers.values():
                buffer.close()
            self._buffers.clear()
            for claims in self._claims.values():
                claims.close()
            self._claims.clear()

    def _new_key(self, name: str) -> str:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "buffer"
        key, number = base, 2
        while key in self._by_key:
            key, number = f"{base}-{number}", number + 1
        return key


def folder_of_runs(paths: Sequence[str]) -> Path:
    """The first path that is a folder of runs. Raises: MissingFileError when none is."""
    for path in paths:
        if "://" not in path and all(run_dir not in (None, Path(path)) for _, run_dir in _inside(path)):
            return Path(path)
    raise MissingFileError(
        f"no folder of runs is among {', '.join(paths)}, and --allow-run starts runs there; give one, for "
        "example runs."
    )


def _opened(subject: Subject) -> Buffer | None:
    if on_hub(subject.where):
        return cast("Buffer", shown_buffer(subject.where))  # it has the methods that the page calls
    if subject.run_dir is None:
        return Buffer(subject.where, read_only=True)
    return open_buffer(subject.run_dir)


def _hub_name(run_dir: Path | None) -> str:
    return "hub" if run_dir is None else str(stored_recipe(run_dir).get("name", "hub"))


def _mark(buffer: Buffer) -> tuple[int, ...]:
    """Identity of a buffer in a folder, which a later one there does not have; empty for all elsewhere."""
    if "://" in buffer.location:
        return ()
    try:
        found = os.stat(Path(buffer.location) / "schema_version")
    except FileNotFoundError:
        return (0,)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _inside(path: str) -> Iterator[tuple[str, Path | None]]:
    """Folder or URL of each subject at a path, with the run's folder where it is a run."""
    if "://" in path:
        try:
            yield path, hub_copy(path) if on_hub(path) else run_folder(path)
        except MissingFileError:  # a buffer alone
            yield path, None
        return
    folder = Path(path)
    if (folder / RECIPE_FILE).is_file():
        yield str(folder), folder
        return
    if any(folder.glob("*.lance")):
        yield str(folder), None
        return
    runs = sorted(file.parent for file in folder.glob(f"*/{RECIPE_FILE}"))
    if not runs:
        raise MissingFileError(
            f"'{path}' is no run, no folder of runs and no buffer; give for example runs/quickstart, or runs."
        )
    for run in runs:
        yield str(run), run
