"""A copy of the repository in which one module at a time is mutated; children of tests see the mutant too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEFT_OUT = shutil.ignore_patterns(".*", "runs", "outputs", "build", "dist", "*.egg-info")


class Sandbox:
    """The copy. Each text written into it has a time of its own, by which Python knows a stale `.pyc`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "tree"
        shutil.copytree(root, self.folder, ignore=LEFT_OUT, symlinks=True)
        self._clock = 1_000_000_000

    @contextmanager
    def holding(self, module: str, text: bytes) -> Iterator[None]:
        """The module has this text inside the block."""
        path = self.folder / module
        original, times = path.read_bytes(), path.stat()
        self._clock += 2
        path.write_bytes(text)
        os.utime(path, (self._clock, self._clock))
        try:
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
