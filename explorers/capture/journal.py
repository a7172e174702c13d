"""A file that notes which trajectories of a server are open, so that they are known after a kill.

It has one line for each opening and one for each end. An opening is on the disk before its client gets an
answer.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from rft_data.core.errors import IntegrityError
from rft_data.core.files import fsync, make_folder, write_text


class Journal:
    """The file, and the trajectories that are open now. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Read the file: `left` is what an earlier process left open."""
        make_folder(path.parent)
        self._path = path
        self._lock = threading.Lock()
        self._open: dict[str, Mapping[str, object]] = {}
        self.left = _left(path)
        """The trajectories that were open when the last process ended, by id: what was said of them."""

    def settle(self) -> None:
        """Forget what was left open, after the caller has stored it: begin an empty file."""
        self.left = {}
        self._write_all()

    def opened(self, name: str, about: Mapping[str, object]) -> None:
        """Note that a trajectory is open; the note is on the disk when this returns."""
        with self._lock:
            self._open[name] = about
            self._append({"open": name, **about})
            descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def ended(self, name: str) -> None:
        """Note that a trajectory has ended. If a kill loses this note, the buffer still shows its rows."""
        with self._lock:
            self._open.pop(name, None)
            self._append({"end": name})
            grown = self._path.stat().st_size > (1 << 20) + 512 * len(self._open)
        if grown:
            self._write_all()

    def _append(self, line: Mapping[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _write_all(self) -> None:
        """Write the file again with what is open now; the lock keeps other lines from being lost."""
        with self._lock:
            lines = [json.dumps({"open": name, **about}) for name, about in self._open.items()]
            write_text(self._path, "".join(f"{line}\n" for line in lines))
            fsync(self._path.parent)


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
