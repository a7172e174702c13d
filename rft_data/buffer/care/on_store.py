"""Verifies and repairs a buffer on an object store: in a copy on this machine, whose changes are put back.

The copy takes as much room as the buffer. A repair that is interrupted while it puts changes back leaves
its mark on the store: the buffer cannot be opened for writing until another repair has finished it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rft_data.buffer.care.damage import Report
from rft_data.buffer.care.repair import repair
from rft_data.buffer.care.repair_report import Repaired
from rft_data.buffer.care.verify import verify
from rft_data.buffer.location import OWNER, OWNER_LOCK, ObjectPrefix
from rft_data.buffer.takeover import take_over
from rft_data.buffer.unfinished import MARK, mark
from rft_data.core.failpoints import failpoint
from rft_data.core.files import file_digest
from rft_data.core.objects import Objects, reached
from rft_data.core.schema import SCHEMA_VERSION
from rft_data.core.scratch import check_has_files

if TYPE_CHECKING:
    from lancedb.db import DBConnection

_MARKER = "schema_version"
_LOCAL = (_MARKER, OWNER_LOCK)
"""Files of the copy that a buffer on an object store does not have."""
_VERSIONS = "/_versions/"


def verify_stored(url: str, *, deep: bool = True) -> Report:
    """`verify` for a buffer on an object store.

    Raises: as there; StalledError if the store cannot be reached; RecipeError for the address of a hub.
    """
    check_has_files(url)
    url = url.rstrip("/")
    ObjectPrefix(url, _opened(url), read_only=True)
    with _copied(Objects(url)) as root:
        return replace(verify(root, deep=deep), root=url)


def repair_stored(url: str, *, dry_run: bool = False) -> Repaired:
    """`repair` for a buffer on an object store; a process that has it open is fenced from sound tables.

    End that process first: its next commit to a damaged table is not refused.
    Raises: as there; StalledError if the store cannot be reached; RecipeError for the address of a hub.
    """
    check_has_files(url)
    url = url.rstrip("/")
    objects = Objects(url)
    ObjectPrefix(url, _opened(url), read_only=dry_run, repairing=True)
    with _copied(objects) as root:
        if not dry_run:
            _fence(url, verify(root, deep=False))
            _fetch(objects, root)
        before = _contents(root)
        done = repair(root, dry_run=dry_run)
        if done.changed and not dry_run:
            _put_back(objects, root, before)
        done.root = url
        if done.folder is not None:
            done.folder = f"{url}/{Path(done.folder).relative_to(root)}"
        return done


def _opened(url: str) -> DBConnection:
    import lancedb  # 1 s

    with reached(url):
        return lancedb.connect(url, read_consistency_interval=timedelta(0))


@contextmanager
def _copied(objects: Objects) -> Iterator[Path]:
    """A folder with the buffer's files."""
    with TemporaryDirectory(prefix="rft-care-") as name:
        root = Path(name).resolve()
        (root / _MARKER).write_text(f"{SCHEMA_VERSION}\n")  # `ObjectPrefix` has compared it
        _fetch(objects, root)
        yield root


def _fetch(objects: Objects, root: Path) -> None:
    """Copy what is not here yet; only hints of the newest version change under their name."""
    for key in objects.keys_below():
        target = root / key
        if key.startswith(f"{OWNER}.lance/") or (target.exists() and target.suffix != ".json"):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        objects.fetch(key, target)


def _fence(url: str, found: Report) -> None:
    """Take over the tables without damage; a new version of another one could take the place of lost rows."""
    import lance

    damaged = {finding.table for finding in found.damage}
    for name in sorted(found.rows.keys() - damaged):
        table = f"{url}/{name}.lance"
        take_over(lance.dataset(table), table)


def _contents(root: Path) -> dict[str, str]:
    """Digest of each file that belongs on the store, by its key."""
    paths = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {key: file_digest(path) for key, path in paths.items() if key not in _LOCAL}


def _put_back(objects: Objects, root: Path, before: dict[str, str]) -> None:
    """Store what is new or changed, manifests last, then delete what was moved aside."""
    after = _contents(root)
    changed = sorted(key for key, digest in after.items() if before.get(key) != digest)
    mark(root, ())
    objects.put(root / MARK, MARK)
    for key in sorted(changed, key=lambda one: _VERSIONS in one):
        failpoint("care.put")
        objects.put(root / key, key)
    for key in sorted(before.keys() - after.keys() - {MARK}):
        objects.remove(key)
    failpoint("care.put")
    objects.remove(MARK)
