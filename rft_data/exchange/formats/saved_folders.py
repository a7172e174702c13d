"""Rows of the folders that `save_to_disk` of datasets wrote: Arrow files, and JSON that names them.

They are read without datasets, which meets a damaged one with any error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pydantic_core import from_json

from rft_data.exchange.formats.arrow_files import batches, check_arrow
from rft_data.exchange.formats.jsonlines import Found
from rft_data.exchange.formats.tables import one_split, table_rows, unreadable

_STATE, _SPLITS = "state.json", "dataset_dict.json"
"""File of a dataset; file of a folder with several, one for each split."""


def is_saved(path: Path) -> bool:
    """Whether a folder is one that `save_to_disk` wrote."""
    return any((path / name).is_file() for name in (_STATE, _SPLITS))


def read_saved(path: Path, split: str | None) -> Iterator[Found]:
    """Rows of such a folder; `split` chooses one of several.

    Raises: MissingFileError if the split is not there, or none was chosen of several; RowError, before the
        first row, for a damaged file.
    """
    folder = _folder(path, split)
    name = str(path) if split is None else f"{path}:{split}"
    files = [folder / file for file in _data_files(folder / _STATE)]
    check_arrow(files, name)
    return _rows(files, name)


def _rows(files: list[Path], name: str) -> Iterator[Found]:
    try:
        yield from table_rows(chain.from_iterable(map(batches, files)), name)
    except (OSError, ValueError, pa.ArrowException) as err:
        raise unreadable(name, err) from err


def _folder(path: Path, split: str | None) -> Path:
    """The folder of one dataset."""
    listed = path / _SPLITS
    if not listed.is_file():
        return path
    found = _json(listed)
    splits = found.get("splits") if isinstance(found, dict) else None
    names = _file_names(splits, listed, "'splits'")
    return one_split({name: path / name for name in names}, split, str(path))


def _data_files(state: Path) -> list[str]:
    found = _json(state)
    files = found.get("_data_files") if isinstance(found, dict) else None
    names = [one.get("filename") if isinstance(one, dict) else one for one in files or []]
    return _file_names(names if isinstance(files, list) else None, state, "'_data_files'")


def _json(file: Path) -> object:
    """Raises: RowError naming the file."""
    try:
        found: object = from_json(file.read_bytes())
    except (OSError, ValueError) as err:
        raise unreadable(str(file), err) from err
    return found


def _file_names(found: object, file: Path, key: str) -> list[str]:
    """Names of files or folders that lie beside `file`, which lists them under `key`.

    Raises: RowError for anything else.
    """
    names = found if isinstance(found, list) else [None]
    good = [name for name in names if isinstance(name, str) and Path(name).name == name]
    if len(good) < len(names):
        raise unreadable(str(file), f"{key} does not list names of what lies beside it")
    for name in good:
        if not (file.parent / name).exists():
            raise unreadable(str(file), f"{key} names {name!r:.100}, which is not there")
    return good
