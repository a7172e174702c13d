"""What "stored" means: `process` survives the death of every process, `power` that of the machine too.

Lance itself never calls fsync; the barrier here covers the files and folders of one commit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Durability = Literal["process", "power"]

_LAST_VERSION = 2**64 - 1


def manifest_path(table: Path, version: int) -> Path:
    """Where Lance keeps the manifest of a version (naming scheme v2: newest sorts first)."""
    return table / "_versions" / f"{_LAST_VERSION - version:020d}.manifest"


def fsync_commit(table: Path, fragments: Sequence[Any], before: int, after: int) -> None:
    """Force one append commit to the disk: data files, transaction file, manifest, and their folders."""
    files = [table / "data" / file.path for fragment in fragments for file in fragment.files]
    files += list((table / "_transactions").glob(f"{before}-*.txn"))
    files.append(manifest_path(table, after))
    for path in [*files, table / "data", table / "_transactions", table / "_versions"]:
        fsync(path)


def fsync_table(table: Path) -> None:
    """Force every file of a table, and its folders, to the disk."""
    for path in table.rglob("*"):
        fsync(path)
    fsync(table)


def fsync(path: Path) -> None:
    """Force a file, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
