"""The folder for what a repair removes from the tables: `<buffer>/repair/<UTC time>/`. Nothing is deleted."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from rft_data.buffer.unfinished import REPAIR_FOLDER
from rft_data.core.failpoints import failpoint
from rft_data.core.files import fsync


class Aside:
    """The folder of one repair, created with its first file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self.path = root / REPAIR_FOLDER / stamp

    def move(self, path: Path) -> Path:
        """Move a file or folder of the buffer here, under the same relative path."""
        target = self.path / path.relative_to(self.root)
        failpoint("repair.step")
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        fsync(target.parent)
        fsync(path.parent)
        return target

    def link(self, path: Path) -> None:
        """Give a file a second name here, so that it stays when its table removes it."""
        target = self.path / path.relative_to(self.root)
        failpoint("repair.step")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
        fsync(target.parent)

    def keep(self, name: str, rows: pa.Table) -> Path:
        """Write rows here as an Arrow file."""
        failpoint("repair.step")
        self.path.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self.path.glob(f"{name}-*.arrow"))
        path = self.path / f"{name}-{number}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        fsync(path)
        return path
