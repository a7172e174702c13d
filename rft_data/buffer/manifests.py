"""The manifests of a table's versions on disk, and whether the newest one has disappeared.

Lance writes a version's manifest first, and its number into a hint file afterwards. So a hint that names a
later version than any manifest tells that a manifest is gone, and with it the rows of its commit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from rft_data.core.errors import IntegrityError

_LAST_VERSION = 2**64 - 1
_MANIFEST = re.compile(r"\d{20}\.manifest")
_HINT = "latest_version_hint.json"


def manifest_path(table: Path, version: int) -> Path:
    """Path of the manifest of a version (Lance's naming scheme v2: the newest sorts first)."""
    return table / "_versions" / f"{_LAST_VERSION - version:020d}.manifest"


def manifest_version(path: Path) -> int:
    """The version of a manifest; inverse of `manifest_path`."""
    return _LAST_VERSION - int(path.stem)


def manifests(table: Path) -> list[Path]:
    """The manifests of a table, newest first."""
    paths = [path for path in (table / "_versions").glob("*.manifest") if _MANIFEST.fullmatch(path.name)]
    return sorted(paths, key=lambda path: path.name)


def hinted_version(table: Path) -> int | None:
    """The newest version as the hint file has it; None when there is no hint, or it cannot be read."""
    try:
        return int(json.loads(hint_path(table).read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def hint_path(table: Path) -> Path:
    """Path of a table's hint file."""
    return table / "_versions" / _HINT


def check_newest(table: Path) -> None:
    """Refuse a table whose newest manifest is gone: the next commit would take its place.

    Raises: IntegrityError.
    """
    hinted = hinted_version(table)  # before the manifests: a living owner may add one between
    present = manifests(table)
    newest = manifest_version(present[0]) if present else 0
    if hinted is not None and present and hinted > newest:
        raise IntegrityError(
            f"table {table} was written up to version {hinted}, but its newest manifest is of version "
            f"{newest}: rows of the commits between are missing. Run `rft buffer repair` on "
            f"{table.parent}, which puts back the rows that its data files still hold."
        )
