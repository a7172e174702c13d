"""Checkpoints of a run: the trainer's files and the state of the conductor, under one manifest.

The manifest is written last; a folder without a matching manifest is no checkpoint.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft_data.core.canonical import canonical_json, content_id
from rft_data.core.errors import IntegrityError
from rft_data.core.failpoints import failpoint
from rft_data.core.files import MANIFEST_FILE, fsync, read_manifest, write_manifest
from rft_data.core.rows import FileFacts

log = logging.getLogger(__name__)

KEPT = 2
"""Complete checkpoints a run keeps."""
_DAMAGED = "damaged-"
_NAME = re.compile(r"checkpoint-(\d+)", re.ASCII)
_WITHOUT_DIGEST = {"step", "state", "files", "tensors"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    """Optimizer steps it holds."""
    directory: Path
    state: Mapping[str, Any]
    """The `state` given to `seal`: selector state and counts."""


def seal(
    directory: Path, step: int, state: Mapping[str, object], files: Mapping[str, FileFacts] | None = None
) -> None:
    """Make a checkpoint folder complete: write state and digests, last.

    Args: files: the folder's files, if their writer has already flushed and digested them.
    """
    failpoint("checkpoint.written")
    write_manifest(directory, {"step": step, "state": state, "own_digest": _own_digest(step, state)}, files)
    for made in (directory, directory.parent):  # its writer may have made both
        fsync(made.parent)
    failpoint("checkpoint.sealed")


def newest(root: Path) -> Checkpoint | None:
    """The newest complete checkpoint under `root`; damaged ones are skipped with a warning and renamed."""
    for path in root.glob("checkpoint-*"):
        if not _NAME.fullmatch(path.name):
            log.warning("%s is left alone: a checkpoint of a run is named checkpoint-STEP", path)
    for step, directory in sorted(_folders(root).items(), reverse=True):
        try:
            manifest = read_manifest(directory)
            found = Checkpoint(int(manifest["step"]), directory, dict(manifest["state"]))
            _check(found, manifest, step)
            return found
        except (IntegrityError, KeyError, TypeError, ValueError) as err:
            log.warning("checkpoint skipped: %s", err)
            if (directory / MANIFEST_FILE).is_file():  # it was complete once; `prune` must not count it
                directory.rename(_free(directory.with_name(f"{_DAMAGED}{directory.name}")))
    return None


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` complete checkpoints; incomplete ones stay for inspection."""
    complete = [p for _, p in sorted(_folders(root).items()) if (p / MANIFEST_FILE).is_file()]
    for old in complete[:-keep]:
        shutil.rmtree(old)


def _folders(root: Path) -> dict[int, Path]:
    """Steps and folders that are named `checkpoint-<step>`."""
    named = {path: _NAME.fullmatch(path.name) for path in root.glob("checkpoint-*")}
    return {int(match[1]): path for path, match in named.items() if match}


def _check(found: Checkpoint, manifest: Mapping[str, object], step: int) -> None:
    """Check the manifest's own content.

    Raises: IntegrityError.
    """
    digest = manifest.get("own_digest")
    if digest is None and manifest.keys() <= _WITHOUT_DIGEST:  # written by 0.5.0
        digest = _own_digest(found.step, found.state)
    if found.step != step or digest != _own_digest(found.step, found.state):
        raise IntegrityError(
            f"{found.directory / MANIFEST_FILE} is damaged: its step or state is not what was written."
        )


def _own_digest(step: int, state: Mapping[str, object]) -> str:
    """A hash of step and state, as they are when read back from JSON."""
    return content_id(step, json.loads(canonical_json(state)))


def _free(path: Path) -> Path:
    """This path, or the path with the first free number as suffix."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain((path,), numbered) if not name.exists())
