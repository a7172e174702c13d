"""The list of a run's files on a store: one row there, which only the run's owner can replace.

A replacement is Lance's compare-and-set on the owner's epoch: a conditional put of the table's next manifest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from rft_data.core.canonical import bytes_id, canonical_json
from rft_data.core.errors import FencedError, IntegrityError, MissingFileError, RftError
from rft_data.core.objects import Objects, reached

log = logging.getLogger(__name__)

OBJECTS = "objects"
"""Folder of the objects; in it one of each owner, by epoch, so that no owner deletes what another one put."""
_TABLE = "files"
_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("listing", pa.string(), nullable=False),
    ]
)
_OLD = timedelta(minutes=10)
_TIDY_EVERY = 100


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the run, as an object."""

    key: str
    bytes: int
    blake2b: str


class Listing:
    """The row, and the object it names: every stored file of the run by its name in the run's folder."""

    def __init__(self, url: str, objects: Objects, *, create: bool = False, epoch: int = 0) -> None:
        """Args: epoch: of the owner, who has taken over with another `Listing`.

        Raises: MissingFileError if there is none, unless `create`.
        """
        import lancedb  # 1 s

        self._url, self._objects = url, objects
        self.epoch = epoch
        """Epoch of this owner; 0 for a reader."""
        with reached(url):
            db = lancedb.connect(url, storage_options=objects.options, read_consistency_interval=timedelta(0))
            if _TABLE not in db.list_tables().tables:
                if not create:
                    raise MissingFileError(
                        f"{url} holds no run (no table '{_TABLE}' in it); name the 'run_dir' of one."
                    )
                first = pa.Table.from_pylist([{"epoch": 0, "listing": ""}], schema=_SCHEMA)
                db.create_table(_TABLE, first, exist_ok=True)
            self._table = db.open_table(_TABLE)
        self._replaced = 0

    def take_over(self) -> None:
        """Become the owner: from now on what a former owner would store is refused."""
        while True:
            epoch = self._row()["epoch"]
            if self._set(epoch, {"epoch": epoch + 1}):
                self.epoch = epoch + 1
                return  # otherwise another owner was faster: read again

    def check_owner(self) -> str:
        """The object with the names, now. Raises: FencedError if another process has taken the run over."""
        row = self._row()
        if row["epoch"] != self.epoch:
            raise self._taken(row["epoch"])
        return str(row["listing"])

    @property
    def key(self) -> str:
        """The object with the names; empty before the first."""
        return str(self._row()["listing"])

    def files(self) -> dict[str, StoredFile]:
        """The stored files by name. Raises: IntegrityError if the listing is damaged."""
        if not (key := self.key):
            return {}
        with TemporaryDirectory() as folder:
            file = Path(folder) / "listing"
            self._objects.fetch(key, file)
            content = file.read_bytes()
        if bytes_id(content) != key.rpartition("-")[2]:
            raise IntegrityError(f"{self._url}/{key} is damaged: it is not the listing that was stored.")
        return {name: StoredFile(**facts) for name, facts in json.loads(content).items()}

    def replace(self, files: Mapping[str, StoredFile]) -> None:
        """Make these the stored files. Raises: FencedError if another process has taken the run over."""
        before = self.check_owner()
        content = canonical_json({name: asdict(stored) for name, stored in files.items()}).encode()
        key = f"{OBJECTS}/{self.epoch}/listing-{bytes_id(content)}"
        with TemporaryDirectory() as folder:
            file = Path(folder) / "listing"
            file.write_bytes(content)
            self._objects.put(file, key)
        if not self._set(self.epoch, {"listing": key}):
            raise self._taken(self._row()["epoch"])
        self._replaced += 1
        try:
            if before not in ("", key):
                self._objects.remove(before)
            if self._replaced % _TIDY_EVERY == 0:
                with reached(self._url):
                    self._table.optimize(cleanup_older_than=_OLD)
        except RftError as err:  # the files are stored; the next owner tidies
            log.warning("something old was not deleted: %s", err)

    def _taken(self, epoch: int) -> FencedError:
        return FencedError(
            f"the run at {self._url} was taken over by another process (its epoch is {epoch}, this process "
            f"has {self.epoch}); nothing of this call is stored. Stop this process: the other one owns the "
            "run now."
        )

    def _set(self, epoch: int, values: Mapping[str, object]) -> bool:
        """Change the row if it has this epoch; returns whether it had. Raises: StalledError."""
        with reached(self._url):
            done = self._table.update(where=f"epoch = {epoch}", values=dict(values))
        return bool(done.rows_updated == 1)

    def _row(self) -> dict[str, Any]:
        with reached(self._url):
            [row] = self._table.search().to_list()
        return dict(row)
