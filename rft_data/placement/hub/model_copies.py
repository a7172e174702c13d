"""Copies of models on a node that does not see them, each in a folder named by the digest of what it holds.

The model's path is a link to its copy. A model that was changed where it comes from gets another copy, to
which files that did not change are linked; who reads the older one goes on reading it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rft_data.core.canonical import content_id
from rft_data.core.files import write_text
from rft_data.placement.hub.run_files import Listing, files_below

COPIES = ".copies"
"""The folder, beside the models, that holds the copies."""
_DRAFT = ".draft-"
_FACTS = ".json"
"""Ending of the file beside a copy with size, time of change and digest of each of its files."""


class ModelCopy:
    """The copy of what a model's folder holds now. Only one process of a node may use it at a time."""

    def __init__(self, folder: Path, theirs: Listing) -> None:
        """`folder`: the model's path, here and where it comes from. `theirs`: what it holds there."""
        self._folder = folder
        self._theirs = theirs
        self._root = folder.parent / COPIES
        self._copy = self._root / content_id({name: list(facts) for name, facts in theirs.items()})

    def there(self) -> bool:
        """Whether it is here, unchanged since its digests were checked."""
        return dict(_unchanged(self._copy)) == {name: digest for name, (_, digest) in self._theirs.items()}

    def make(self, complete: Callable[[Path], None], before: Path | None) -> None:
        """Make it; `complete` fetches into a folder what that lacks.

        Args: before: a copy that an older release made, whose files are used; None: there is none.
        """
        draft = self._root / f"{_DRAFT}{self._copy.name}"
        self._root.mkdir(exist_ok=True)
        if before is not None:
            shutil.rmtree(draft, ignore_errors=True)
            before.rename(draft)
        self._link_known(draft)
        complete(draft)
        shutil.rmtree(self._copy, ignore_errors=True)
        found = {name: (path.stat().st_size, path.stat().st_mtime_ns) for name, path in files_below(draft)}
        facts = {name: [*found[name], digest] for name, (_, digest) in self._theirs.items()}
        write_text(_facts(self._copy), json.dumps(facts))
        draft.rename(self._copy)

    def use(self) -> None:
        """Have the model's path lead to it, and remove copies to which no path leads, but the newest."""
        os.utime(_facts(self._copy))
        link = self._root / f".link-{self._folder.name}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(COPIES, self._copy.name))
        link.replace(self._folder)
        led_to = {path.readlink().name for path in self._root.parent.iterdir() if leads_to_copy(path)}
        unused = [copy for copy in _copies(self._root) if copy.name not in led_to]
        for copy in sorted(unused, key=lambda copy: _facts(copy).stat().st_mtime_ns)[:-1]:
            _facts(copy).unlink()
            shutil.rmtree(copy, ignore_errors=True)
        for interrupted in self._root.glob(f"{_DRAFT}*"):
            shutil.rmtree(interrupted, ignore_errors=True)

    def _link_known(self, draft: Path) -> None:
        """Link files that another copy has, and the draft has not."""
        known = {digest: copy / name for copy in _copies(self._root) for name, digest in _unchanged(copy)}
        for name, (_, digest) in self._theirs.items():
            path = draft / name
            if digest in known and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(known[digest], path)


def leads_to_copy(path: Path) -> bool:
    """Whether a model's path is a link that was made here."""
    return path.is_symlink() and path.readlink().parent == Path(COPIES)


def _copies(root: Path) -> list[Path]:
    return [path.with_suffix("") for path in root.glob(f"*{_FACTS}")]


def _facts(copy: Path) -> Path:
    return copy.with_name(copy.name + _FACTS)


def _unchanged(copy: Path) -> Iterator[tuple[str, str]]:
    """Name and digest of each file of a copy whose size and time of change are as when it was checked."""
    with suppress(FileNotFoundError):
        for name, (size, changed, digest) in json.loads(_facts(copy).read_text()).items():
            with suppress(FileNotFoundError):
                found = (copy / name).stat()
                if (found.st_size, found.st_mtime_ns) == (size, changed):
                    yield name, digest
