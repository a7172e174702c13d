"""Checkpoints of a run: the trainer's files and the state of the conductor, under one manifest.

The manifest is written last; a folder without a matching manifest is no checkpoint.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft_data.core.errors import IntegrityError
from rft_data.core.failpoints import failpoint
from rft_data.core.files import MANIFEST_FILE, read_manifest, write_manifest
from rft_data.core.rows import FileFacts

log = logging.getLogger(__name__)

KEPT = 2
"""Complete checkpoints a run keeps."""
_DAMAGED = "damaged-"


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
    write_manifest(directory, {"step": step, "state": state}, files)
    failpoint("checkpoint.sealed")


def newest(root: Path) -> Checkpoint | None:
    """The newest complete checkpoint under `root`; damaged ones are skipped with a warning and renamed."""
    found = sorted(root.glob("checkpoint-*"), key=lambda p: int(p.name.rsplit("-", 1)[1]), reverse=True)
    for directory in found:
        try:
            manifest = read_manifest(directory)
            return Checkpoint(int(manifest["step"]), directory, dict(manifest["state"]))
        except (IntegrityError, KeyError, TypeError, ValueError) as err:
            log.warning("checkpoint skipped: %s", err)
            if (directory / MANIFEST_FILE).is_file():  # it was complete once; `prune` must not count it
                directory.rename(_free(directory.with_name(f"{_DAMAGED}{directory.name}")))
    return None


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` complete checkpoints; incomplete ones stay for inspection."""
    complete = [p for p in root.glob("checkpoint-*") if (p / MANIFEST_FILE).is_file()]
    ordered = sorted(complete, key=lambda p: int(p.name.rsplit("-", 1)[1]))
    for old in ordered[:-keep]:
        shutil.rmtree(old)


def _free(path: Path) -> Path:
    """This path, or the path with the first free number as suffix."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain((path,), numbered) if not name.exists())
