"""The sources that `rft buffer import` reads: a file, a dataset folder, or a dataset of the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.lookup import need
from rft_data.exchange.formats.arrow_files import check_arrow, read_arrow
from rft_data.exchange.formats.jsonlines import Found, read_json
from rft_data.exchange.formats.tables import dataset_rows, read_csv, read_folder, read_parquet

READERS: Mapping[str, Callable[[Path], Iterator[Found]]] = {
    ".jsonl": read_json,
    ".json": read_json,
    ".ndjson": read_json,
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}
_PACKED = (".gz", ".zst")
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
    if path.is_file():
        return Source(str(path), path.name.split(".")[0] or path.name, _reader(path)(path))
    split = None
    if not path.exists() and ":" in path.name:
        stem, _, split = path.name.rpartition(":")
        path = path.with_name(stem)
    if path.is_dir():
        if not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
            raise MissingFileError(
                f"{path} is a folder, but not one that datasets' save_to_disk wrote; give one of its files."
            )
        check_arrow(sorted(path.rglob("*.arrow")), str(source))
        return Source(str(source), path.name, read_folder(path, split))
    raise MissingFileError(f"there is no file or dataset folder at {source}.")


def _reader(path: Path) -> Callable[[Path], Iterator[Found]]:
    suffix = path.with_suffix("").suffix if path.suffix in _PACKED else path.suffix
    if suffix not in READERS or (path.suffix in _PACKED and suffix in (".parquet", ".arrow")):
        raise RecipeError(
            f"{path}: files called '{path.suffix}' are not read; wanted {', '.join(READERS)} (text also "
            "as .gz or .zst), a dataset folder, or hf://org/name:split@revision."
        )
    return READERS[suffix]


def _hub(source: str) -> Source:
    match = _HUB.fullmatch(source)
    if match is None:
        raise RecipeError(
            f"'{source}' is not a dataset of the hub; write hf://org/name:split@revision, or "
            "hf://org/name/config:split@revision."
        )
    datasets = need("datasets", "ops", f"reading {source}")
    repo, config, split = match["repo"], match["config"], match["split"]
    commit = _commit(repo, match["revision"], source)
    try:
        dataset = datasets.load_dataset(repo, name=config, split=split, revision=commit)
    except (OSError, ValueError) as err:
        raise _unreachable(source, err) from err
    whole = repo if config is None else f"{repo}/{config}"
    name = f"hf://{whole}:{split}@{commit}"
    return Source(name, repo, dataset_rows(dataset, name))


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
