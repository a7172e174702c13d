"""Datasets of ModelScope's hub: fetched by its own package, then read as a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.lookup import need
from rft_data.exchange.formats.inputs import HubParts, Source, folder_source, open_source

MODELSCOPE = "modelscope://"
"""How the name of a dataset begins on the command line and in `imports`."""
_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?::(?P<split>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def modelscope_parts(source: str) -> HubParts:
    """The parts of `modelscope://owner/name[/config][:split][@revision]`. Raises: RecipeError."""
    match = _NAME.fullmatch(source.removeprefix(MODELSCOPE))
    if match is None:
        raise RecipeError(
            f"'{source}' is not a dataset of ModelScope; write modelscope://owner/name:split@revision."
        )
    return {
        "repo": match["repo"],
        "config": match["config"],
        "split": match["split"],
        "revision": match["revision"],
    }


def open_named(source: str | Path) -> Source:
    """Open what `open_source` opens, or `modelscope://owner/name:split@revision`.

    Raises: what the two raise.
    """
    if str(source).startswith(MODELSCOPE):
        return modelscope_source(**modelscope_parts(str(source)))
    return open_source(source)


def modelscope_source(repo: str, *, config: str | None, split: str | None, revision: str | None) -> Source:
    """A dataset of ModelScope at a revision; of a commit that was fetched before, nothing is asked again.

    Args: split: None: the only one. revision: branch, tag or commit; None: `master`.
    Raises: MissingExtraError; MissingFileError when it cannot be fetched, or has no such split.
    """
    name = f"modelscope://{repo}@{revision or 'master'}"
    source = folder_source(_fetched(repo, revision, name), config=config, split=split)
    return replace(source, name=name if split is None else f"{name}:{split}", taskset=Path(repo).name)


def _reason(err: Exception) -> str:
    """Message of the system, where it is within those of several libraries; else the first line."""
    first = str(err).strip().partition("\n")[0] or type(err).__name__
    return match[0] if (match := re.search(r"\[Errno -?\d+\] [\w ,.-]+", first)) else first


def _fetched(repo: str, revision: str | None, name: str) -> Path:
    """The folder with the dataset's files."""
    package = need("modelscope_hub", "modelscope", f"reading {name}")
    hub = package.HubApi()
    try:
        if revision is not None and _COMMIT.fullmatch(revision):
            try:
                return Path(hub.download_repo(repo, "dataset", revision=revision, local_files_only=True))
            except package.CacheNotFound:
                pass  # it is fetched below
        return Path(hub.download_repo(repo, "dataset", revision=revision))
    except (package.HubError, OSError, ValueError) as err:
        raise MissingFileError(
            f"{name} cannot be fetched: {_reason(err)}. Offline, give a folder with its files (source "
            "huggingface), or the full commit of one that was fetched before."
        ) from err
