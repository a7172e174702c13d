"""Durability of stored rows: `process` survives the death of all processes, `power` that of the machine.

Lance itself never calls fsync; this module does, for the files and folders of one commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rft_data.buffer.manifests import manifest_path
from rft_data.core.files import fsync

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

Durability = Literal["process", "power"]


class Barrier:
    """Forces what a writer has committed to the disk."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder of the tables."""
        self._root = root
        self._named: set[str] = set()

    def data(self, name: str, fragments: Sequence[FragmentMetadata]) -> None:
        """Force data files down, before the commit that names them.

        A table's first append makes the folder of its data; an earlier owner may have made it unsynced.
        """
        table = self._root / f"{name}.lance"
        for path in (table / "data" / file.path for fragment in fragments for file in fragment.files):
            fsync(path)
        fsync(table / "data")
        if name not in self._named:
            fsync(table)
            fsync(self._root)
            self._named.add(name)

    def commit(self, name: str, before: int, after: int) -> None:
        """Force one append commit down: transaction file and manifest."""
        table = self._root / f"{name}.lance"
        transactions = (table / "_transactions").glob(f"{before}-*.txn")
        for path in (
            *transactions,
            manifest_path(table, after),
            table / "_transactions",
            table / "_versions",
        ):
            fsync(path)

    def table(self, name: str) -> None:
        """Force all of a table down."""
        fsync_table(self._root / f"{name}.lance")
        fsync(self._root)


def fsync_table(table: Path, since: float = 0.0) -> None:
    """Force a table's folders, and its files written after `since` (mtime, seconds), to the disk."""
    for path in [table, *table.rglob("*")]:
        if path.is_dir() or path.stat().st_mtime >= since:
            fsync(path)
