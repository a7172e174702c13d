"""Durability of stored rows: `process` survives the death of all processes, `power` that of the machine.

Lance itself never calls fsync; this module does, for the files and folders of one commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rft_data.buffer.manifests import manifest_path
from rft_data.core.files import fsync

Durability = Literal["process", "power"]


def fsync_commit(table: Path, fragments: Sequence[Any], before: int, after: int) -> None:
    """Force one append commit to the disk: data files, transaction file, manifest, and their folders."""
    files = [table / "data" / file.path for fragment in fragments for file in fragment.files]
    files += list((table / "_transactions").glob(f"{before}-*.txn"))
    files.append(manifest_path(table, after))
    for path in [*files, table / "data", table / "_transactions", table / "_versions"]:
        fsync(path)


def fsync_table(table: Path, since: float = 0.0) -> None:
    """Force a table's folders, and its files written after `since` (mtime, seconds), to the disk."""
    for path in [table, *table.rglob("*")]:
        if path.is_dir() or path.stat().st_mtime >= since:
            fsync(path)
