"""A file that notes which trajectories of a server are open, so that they are known after a kill.

It has a line for each opening, reward and end, until it is written anew with what is open. An opening is on
the disk before its client gets an answer.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from rft_data.core.errors import DiskFullError, IntegrityError
from rft_data.core.files import make_folder, write_text

log = logging.getLogger(__name__)
_SPARE_BYTES = 1 << 20
"""Bytes that the file may have beside twice what it had when it was written anew."""


class Journal:
    """The file, and the trajectories that are open now. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Read the file: `left` is what an earlier process left open."""
        make_folder(path.parent)
        self._path = path
        self._lock = threading.Lock()
        self._open: dict[str, Mapping[str, object]] = {}
        self._kept_bytes = 0
        """Of the file when it was written anew."""
        self.left = _left(path)
        """The trajectories that were open when the last process ended, by id: what was said of them."""

    def settle(self) -> None:
        """Forget what was left open, after the caller has stored it: begin an empty file."""
        with self._lock:
            self.left = {}
            self._write_all()

    def opened(self, name: str, about: Mapping[str, object]) -> None:
        """Note that a trajectory is open, or what is said of it now; the note is on the disk at the return.

        Raises: DiskFullError for a note that cannot be written; then there is none.
        """
        with self._lock:
            self._append({"open": name, **about})
            self._open[name] = about
            descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def ended(self, name: str) -> None:
        """Note that a trajectory has ended. If this note is lost, the buffer still shows its rows."""
        with self._lock:
            self._open.pop(name, None)
            try:
                self._append({"end": name})
            except DiskFullError as err:
                log.warning("the end of trajectory '%s' is stored, and not noted: %s", name, err)

    def _append(self, line: Mapping[str, object]) -> None:
        """Write a line whole, or leave the file as it was. Raises: DiskFullError."""
        left = (json.dumps(line) + "\n").encode()
        try:
            with self._path.open("ab", buffering=0) as file:
                before = file.tell()
                try:
                    while left:
                        left = left[file.write(left) :]
                except OSError:
                    file.truncate(before)
                    raise
            if before > _SPARE_BYTES + 2 * self._kept_bytes:
                self._write_all()
        except OSError as err:
            raise DiskFullError(f"{self._path} cannot be written ({err}); make room on its disk.") from err

    def _write_all(self) -> None:
        """Write the file anew with what is open now; the caller has the lock."""
        lines = [json.dumps({"open": name, **about}) for name, about in self._open.items()]
        text = "".join(f"{line}\n" for line in lines)
        write_text(self._path, text)
        self._kept_bytes = len(text)


def _left(path: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    lines = path.read_text().split("\n") if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line else {}
        except ValueError as err:
            if number == len(lines):  # cut off by a kill, before its client got an answer
                continue
            raise IntegrityError(f"{path}:{number} is damaged ({err}); remove the file to go on.") from err
        if "open" in row:
            found[str(row.pop("open"))] = row
        elif "end" in row:
            found.pop(str(row["end"]), None)
    return found
