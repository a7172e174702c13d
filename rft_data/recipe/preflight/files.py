"""Files and folders that a recipe names and that are not there."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rft_data.core.lookup import suggest
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.tree import Tree, entries, value
from rft_data.recipe.section import Loc
from rft_data.recipe.sections import ENDPOINT

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_MODEL = "config.json"
_FETCHED = ("hf://", "modelscope://")


def missing_files(tree: Tree) -> Iterator[Problem]:
    """Data files and model folders that are not there; a hub id is looked for in the cache alone."""
    for key in ("tasks", "rollouts", "imports"):
        for loc, entry in entries(tree, key):
            path = value(entry, "source", "path")
            use = value(entry, "source", "use")
            if use in ("jsonl", "file") and isinstance(path, str):
                yield from _data((*loc, "source", "path"), path)
            elif use == "huggingface" and isinstance(path, str):
                yield from _dataset((*loc, "source", "path"), path)
    for loc, entry in entries(tree, "imports"):
        path = value(entry, "path")
        if isinstance(path, str) and not path.startswith(_FETCHED) and not _is_dataset(path):
            yield from _data((*loc, "path"), path)
    for loc, stage in entries(tree, "stages"):
        if isinstance(teacher := stage.get("teacher"), str) and not (Path(teacher) / _MODEL).is_file():
            yield Problem((*loc, "teacher"), f"'{teacher}' {_no_model(Path(teacher))}; give a model's folder")
    if value(tree, "explorer", "engine", "use") != ENDPOINT:  # there, models are names at the endpoint
        yield from _models(tree)


def _models(tree: Tree) -> Iterator[Problem]:
    path = value(tree, "model", "path")
    if isinstance(path, str):
        yield from _model(("model", "path"), path)
    models = value(tree, "models")
    for place, pattern in enumerate(models if isinstance(models, list) else []):
        if isinstance(pattern, str) and next(matching(pattern), None) is None:
            yield Problem(
                ("models", place), f"'{pattern}' names no folder that is there, seen from {Path.cwd()}"
            )


def unwritable_folders(tree: Tree) -> Iterator[Problem]:
    """Folders that a run writes into and cannot."""
    places: list[tuple[Loc, object]] = [(("run_dir",), value(tree, "run_dir"))]
    places.append((("buffer", "uri"), value(tree, "buffer", "uri")))
    for loc, given in places:
        if not isinstance(given, str) or "://" in given:
            continue
        folder = Path(given).absolute()
        there = next(one for one in (folder, *folder.parents) if one.exists())
        if not there.is_dir():
            yield Problem(loc, f"'{given}' cannot be written: {there} is a file; give another folder")
        elif why := _unwritable(there):
            yield Problem(loc, f"'{given}' cannot be written: {there}: {why}; give another folder")


def _unwritable(folder: Path) -> str | None:
    """The reason that no file can be made in a folder, or None: permissions alone do not say it to root."""
    try:
        with tempfile.TemporaryFile(dir=folder):  # without a name, where the file system can do that
            return None
    except OSError as err:
        return err.strerror


def _data(loc: Loc, path: str) -> Iterator[Problem]:
    file = Path(path)
    if file.is_dir() and file.suffix == ".lance":
        return
    if file.is_dir():
        yield Problem(loc, f"'{path}' is a folder; give a file, or write use: huggingface for a dataset's")
    elif not file.is_file():
        near = sorted(file.parent.iterdir()) if file.parent.is_dir() else []
        hint = suggest(str(file), [str(one) for one in near if one.is_file()])
        seen = f"seen from {Path.cwd()} or the recipe's folder"
        yield Problem(loc, f"there is no file '{path}', {seen};{hint or ' give its path'}")


def _is_dataset(path: str) -> bool:
    """Whether a path, or what is before the split at its end, is a folder."""
    return Path(path).is_dir() or Path(path.rpartition(":")[0] or path).is_dir()


def _dataset(loc: Loc, path: str) -> Iterator[Problem]:
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.exists():
        yield Problem(loc, f"'{path}' is a file; write use: file")
    elif folder.is_absolute() or path.startswith(".") or not _HUB_ID.fullmatch(path):
        yield Problem(
            loc,
            f"'{path}' is not there, seen from {Path.cwd()}; give a dataset's folder or a hub id (org/name)",
        )


def _model(loc: Loc, path: str) -> Iterator[Problem]:
    folder = Path(path)
    if (folder / _MODEL).is_file():
        return
    if folder.exists() or folder.is_absolute() or path.startswith(".") or not _HUB_ID.fullmatch(path):
        yield Problem(loc, f"'{path}' {_no_model(folder)}; give a Hugging Face folder or a hub id")
    elif os.environ.get("HF_HUB_OFFLINE") == "1" and not _cached(path):
        yield Problem(
            loc,
            f"'{path}' is neither a folder, seen from {Path.cwd()}, nor in the cache of Hugging Face, and "
            "HF_HUB_OFFLINE is set; give a folder, or allow the network",
        )


def _no_model(folder: Path) -> str:
    """The reason that a folder is no model's, after its name."""
    if folder.is_dir():
        return f"is no model folder (no {_MODEL} in it)"
    near = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else []
    hint = suggest(str(folder), [str(one) for one in near if one.is_dir()])
    return f"is not there, seen from {Path.cwd()};{hint}" if hint else f"is not there, seen from {Path.cwd()}"


def _cached(hub_id: str) -> bool:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return any((cache / f"models--{hub_id.replace('/', '--')}" / "snapshots").glob("*"))


def matching(pattern: str) -> Iterator[Path]:
    """The folders and files that a path or a pattern names."""
    root = Path(pattern)
    yield from [root] if root.is_dir() else Path(root.anchor or ".").glob(str(root.relative_to(root.anchor)))
