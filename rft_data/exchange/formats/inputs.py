"""The sources that `rft buffer import` reads: a file, a dataset folder, or a dataset of the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.lookup import need
from rft_data.exchange.formats.arrow_files import read_arrow
from rft_data.exchange.formats.jsonlines import Found, read_json
from rft_data.exchange.formats.saved_folders import is_saved, read_saved
from rft_data.exchange.formats.tables import (
    dataset_rows,
    one_split,
    read_csv,
    read_lance,
    read_parquet,
)

READERS: Mapping[str, Callable[[Path], Iterator[Found]]] = {
    ".jsonl": read_json,
    ".json": read_json,
    ".ndjson": read_json,
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".lance": read_lance,
}
_PACKED = (".gz", ".zst")
_WHOLE = (".parquet", ".arrow", ".lance")
"""Kinds that are compressed inside."""
_HUB = re.compile(
    r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?:(?P<split>[\w.-]+)(?:@(?P<revision>[\w./-]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Source:
    """An opened source."""

    name: str
    """Its whole name; for a dataset of the hub with the commit that was read."""
    taskset: str
    """The taskset of its rows, unless the caller gives another."""
    rows: Iterator[Found]


def open_source(source: str | Path) -> Source:
    """Open a file, a folder (`path` or `path:split`) or `hf://org/name[/config]:split[@revision]`.

    Raises: MissingFileError, MissingExtraError, RecipeError for a kind of file that is not read; RowError
        for a folder with a damaged file.
    """
    if str(source).startswith("hf://"):
        return _hub(str(source))
    path = Path(source)
    if path.is_file() or (path.is_dir() and path.suffix == ".lance"):
        return Source(str(path), path.name.split(".")[0] or path.name, _reader(path)(path))
    split = None
    if not path.exists() and ":" in path.name:
        stem, _, split = path.name.rpartition(":")
        path = path.with_name(stem)
    if path.is_dir():
        if not is_saved(path):
            raise MissingFileError(
                f"{path} is a folder, but not one that datasets' save_to_disk wrote; give one of its files."
            )
        return Source(str(source), path.name, read_saved(path, split))
    raise MissingFileError(f"there is no file or dataset folder at {source}.")


def _reader(path: Path) -> Callable[[Path], Iterator[Found]]:
    suffix = path.with_suffix("").suffix if path.suffix in _PACKED else path.suffix
    if suffix not in READERS or (path.suffix in _PACKED and suffix in _WHOLE):
        raise RecipeError(
            f"{path}: files called '{path.suffix}' are not read; wanted {', '.join(READERS)} (text also "
            "as .gz or .zst), a dataset folder, or hf://org/name:split@revision."
        )
    return READERS[suffix]


def _hub(source: str) -> Source:
    return hub_source(**hub_parts(source))


class HubParts(TypedDict):
    """The parts of a name `hf://org/name[/config]:split[@revision]`."""

    repo: str
    config: str | None
    split: str | None
    revision: str | None


def hub_parts(source: str) -> HubParts:
    """The parts of a dataset's name. Raises: RecipeError for another text."""
    match = _HUB.fullmatch(source)
    if match is None:
        raise RecipeError(
            f"'{source}' is not a dataset of the hub; write hf://org/name:split@revision, or "
            "hf://org/name/config:split@revision."
        )
    return {
        "repo": match["repo"],
        "config": match["config"],
        "split": match["split"],
        "revision": match["revision"],
    }


def hub_source(
    repo: str, *, config: str | None, split: str | None, revision: str | None, streaming: bool = False
) -> Source:
    """A dataset of the hub, at the commit that `revision` names now.

    Args: split: None: the only one. streaming: rows are fetched as they are read.
    Raises: MissingExtraError; MissingFileError when it cannot be fetched, or has no such split.
    """
    whole = repo if config is None else f"{repo}/{config}"
    source = f"hf://{whole}" + ("" if split is None else f":{split}")
    commit = _commit(repo, revision, source)
    name = f"{source}@{commit}"
    return Source(name, repo, _loaded(repo, name, config, split, streaming=streaming, revision=commit))


def folder_source(path: Path, *, config: str | None, split: str | None, streaming: bool = False) -> Source:
    """A folder that `save_to_disk` wrote, or one with data files that `datasets` finds its way in.

    Raises: MissingExtraError; MissingFileError when there is no such split, or no data.
    """
    if is_saved(path):
        return open_source(path if split is None else f"{path}:{split}")
    name = str(path) if split is None else f"{path}:{split}"
    return Source(name, path.name, _loaded(str(path), name, config, split, streaming=streaming))


def _loaded(
    path: str, source: str, config: str | None, split: str | None, **options: object
) -> Iterator[Found]:
    datasets = need("datasets", "ops", f"reading {source}")
    if not options["streaming"]:
        del options["streaming"]
    try:
        dataset = datasets.load_dataset(path, name=config, split=split, **options)
    except (OSError, ValueError) as err:
        raise _unreachable(source, err) from err
    if isinstance(dataset, Mapping):  # DatasetDict and IterableDatasetDict are dicts
        dataset = one_split(dataset, split, path)
    return dataset_rows(dataset, source)


def _commit(repo: str, revision: str | None, source: str) -> str:
    """The commit that a revision names now, because branches and tags move later."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    hub = need("huggingface_hub", "ops", f"reading {source}")
    httpx = need("httpx", "ops", f"reading {source}")
    try:
        return str(hub.HfApi().dataset_info(repo, revision=revision).sha)
    except (OSError, ValueError, httpx.HTTPError) as err:
        raise _unreachable(source, err) from err


def _unreachable(source: str, err: Exception) -> MissingFileError:
    reason = str(err).splitlines()[0] if str(err) else type(err).__name__
    return MissingFileError(
        f"{source} cannot be read: {reason}. Offline, give a dataset folder (save_to_disk) or a file; a "
        "dataset already in the cache needs its full commit as @revision."
    )
