"""The child process of `buffer/care/trial.py`: decodes parts of tables in order, which may kill it.

It writes a line for each batch, and `done` after each part. A module of the buffer's package would import all
of the buffer, and pandas: 0.5 s of CPU time at each start instead of 0.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from rft_data.core.children import connected, without_pandas

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Part:
    """A fragment of one version of a table and the columns to read of it; or a data file by itself."""

    path: str
    version: int | None = None
    """None: `path` is a data file, to be read without a manifest."""
    fragment: int = 0
    columns: tuple[str, ...] = ()


def main() -> None:
    """Decode the parts that the first line lists."""
    channel = connected()
    without_pandas()
    for fields in json.loads(channel.makefile("rb").readline()):
        part = Part(**fields)
        try:
            for _ in _batches(part):
                channel.sendall(b"batch\n")
        except BaseException as err:  # a panic is not an Exception; it only has to be caught
            if isinstance(err, (KeyboardInterrupt, SystemExit)):
                raise
        channel.sendall(b"done\n")


def _batches(part: Part) -> Iterable[pa.Table | pa.RecordBatch]:
    if part.version is None:
        from lance.file import LanceFileReader

        return [LanceFileReader(part.path).read_all().to_table()]
    dataset = _opened(part.path, part.version)
    fragment = dataset.get_fragment(part.fragment)
    if fragment is None:
        return []
    scanner = dataset.scanner(columns=list(part.columns), fragments=[fragment], batch_readahead=2)
    batches: Iterable[pa.RecordBatch] = scanner.to_reader()
    return batches


@lru_cache(1)
def _opened(path: str, version: int) -> lance.LanceDataset:
    import lance

    return lance.dataset(path, version=version)


if __name__ == "__main__":
    main()
