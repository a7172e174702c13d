"""A file system of a given size, to fill up."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(folder: Path, size: str) -> Iterator[Path]:
    """`size` as mount reads it; skips the test where mounting is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as err:
        pytest.skip(f"no small file system: {err}")
    if made.returncode:
        pytest.skip(f"no small file system: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
