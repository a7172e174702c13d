"""The child process of `trial.py`: decodes parts in order; a line for each batch, `done` after each part."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from rft_data.buffer.care.trial import Part
from rft_data.core.children import connected, without_pandas

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


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
