"""The child process of `trial.py`: decodes parts in order; a line for each batch, `done` after each part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rft_data.core.children import connected


def main() -> None:
    """Decode the parts that the first line lists."""
    channel = connected()
    for part in json.loads(channel.makefile("rb").readline()):
        try:
            for _ in _batches(part):
                channel.sendall(b"batch\n")
        except BaseException as err:  # a panic is not an Exception; it only has to be caught
            if isinstance(err, (KeyboardInterrupt, SystemExit)):
                raise
        channel.sendall(b"done\n")


def _batches(part: Mapping[str, Any]) -> Any:
    import lance
    from lance.file import LanceFileReader

    if part["version"] is None:
        return [LanceFileReader(part["path"]).read_all().to_table()]
    dataset: Any = lance.dataset(part["path"], version=part["version"])
    fragment = dataset.get_fragment(part["fragment"])
    return dataset.scanner(columns=part["columns"], fragments=[fragment], batch_readahead=2).to_reader()


if __name__ == "__main__":
    main()
