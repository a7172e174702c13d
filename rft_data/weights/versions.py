"""The registry of policy versions, and weight directories that are either complete or absent.

A version is issued for every optimizer step of a run and only grows; numbers may have gaps, so
distance is counted in optimizer steps (`optimizer_step`), never by subtracting versions.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from rft_data.buffer import Buffer
from rft_data.core.canonical import bytes_id
from rft_data.core.errors import IntegrityError
from rft_data.core.failpoints import failpoint
from rft_data.core.files import (
    MANIFEST_FILE,
    fsync,
    make_folder,
    manifest_bytes,
    parse_manifest,
    write_manifest,
)
from rft_data.core.filters import Compare
from rft_data.core.rows import WeightRef

_REMOVED = ".removed-"


class Header(TypedDict):
    """The entries of a version's manifest beside its files."""

    run_id: str
    version: int
    step: int


class VersionRegistry:
    """Issues versions and publishes weights for one run."""

    def __init__(self, buffer: Buffer, run_id: str, root: Path, *, keep: int = 2) -> None:
        """`root`: folder of the weight directories; the newest `keep` and those held stay on disk."""
        self._buffer = buffer
        self._run_id = run_id
        self._root = root
        self._keep = keep
        self._held: Counter[int] = Counter()
        self._last_try: WeightRef | None = None
        self._load()

    def _load(self) -> None:
        columns = ["version", "step", "path", "manifest_digest"]
        rows = self._buffer.read("versions", columns, Compare("run_id", "eq", self._run_id)).to_pylist()
        self._steps: dict[int, int] = {row["version"]: row["step"] for row in rows}
        self._folders: dict[int, tuple[str, str]] = {
            row["version"]: (row["path"], row["manifest_digest"]) for row in rows if row["path"]
        }
        self._latest: int = max(self._steps, default=-1)
        self._unsure = False

    # --- versions ----------------------------------------------------------------------------------

    @property
    def latest(self) -> int:
        """The newest version issued; -1 before the first."""
        self._reload_if_unsure()
        return self._latest

    def optimizer_step(self, version: int) -> int:
        """Optimizer steps behind a version's weights.

        Raises: IntegrityError for a version this run never issued.
        """
        self._reload_if_unsure()
        if version not in self._steps:
            raise IntegrityError(
                f"run '{self._run_id}' never issued policy version {version} (newest: {self._latest}); "
                "these rows belong to another run."
            )
        return self._steps[version]

    def issue(self, step: int) -> int:
        """The next version, for weights that are not published (no engine will serve them)."""
        return (self._recorded(step, published=False) or self._record(step, "", "")).version

    # --- publishing --------------------------------------------------------------------------------

    def header(self, step: int) -> Header:
        """The entries of the next version's manifest beside its files."""
        return {"run_id": self._run_id, "version": self.latest + 1, "step": step}

    def draft(self, step: int) -> Path:
        """An empty folder for the weights after `step` optimizer steps.

        Any process that shares the file system may fill it: first the files, then the manifest with
        `write_manifest(draft, registry.header(step))`. `finish` makes it a version.
        """
        version = self.header(step)["version"]
        draft = self._draft(version)
        # a run that was killed before the version was recorded may have left either
        for leftover in (draft, self._final(version)):
            self._remove(leftover)
        make_folder(self._root)
        draft.mkdir()
        return draft

    def finish(self, step: int, digest: str) -> WeightRef:
        """Issue the version of a filled draft. It appears under its final name only when complete.

        `digest`: of the manifest, as `write_manifest` returned it. A retry after an error with unknown
        outcome returns the version that was recorded.

        Raises: IntegrityError when the draft's manifest is missing, differs, or belongs to another version.
        """
        recorded = self._recorded(step, published=True)
        version = self._latest + 1
        draft, final = self._draft(version), self._final(version)
        if recorded is not None:
            self._remove(draft)
            return recorded
        found = draft if draft.exists() or not final.exists() else final  # a retry finds it renamed
        self._check(found, digest, self.header(step))
        failpoint("publish.written")
        if found == draft:
            draft.rename(final)
        fsync(self._root)
        failpoint("publish.renamed")
        ref = self._record(step, str(final), digest)
        self._prune()
        return ref

    def publish(self, step: int, save: Callable[[Path], None]) -> WeightRef:
        """Make a draft, let `save` fill it, write its manifest and finish it; see `draft` and `finish`."""
        recorded = self._recorded(step, published=True)
        if recorded is not None:
            return recorded
        draft = self.draft(step)
        save(draft)
        return self.finish(step, write_manifest(draft, self.header(step)))

    # --- what is on disk ---------------------------------------------------------------------------

    def ref(self, version: int) -> WeightRef:
        """A published version whose folder still exists.

        Raises: IntegrityError when this run never issued it, did not publish it, or has removed it.
        """
        step = self.optimizer_step(version)
        name, digest = self._folders.get(version, ("", ""))
        folder = self._root / name
        if not name:
            raise IntegrityError(
                f"version {version} of run '{self._run_id}' was issued, but its weights were not published; "
                f"published and on disk: {self._stored()}."
            )
        if not folder.is_dir():
            raise IntegrityError(
                f"the weights of version {version} of run '{self._run_id}' ({folder}) were removed; "
                f"on disk: {self._stored()}. Keep more of them (`keep`), or use one of these."
            )
        self._check(folder, digest, {"version": version, "step": step})
        return WeightRef(self._run_id, version, step, str(folder), _base(folder))

    def published(self) -> list[WeightRef]:
        """Every published version whose folder still exists, oldest first."""
        self._reload_if_unsure()
        return [self.ref(version) for version in self._stored()]

    def hold(self, version: int) -> None:
        """Keep a version's folder (an engine is loading it) until as many calls of `let_go`."""
        self._held[version] += 1

    def let_go(self, version: int) -> None:
        """Undo one `hold`; the next pruning deletes the folder if it is not among the newest."""
        self._held[version] -= 1

    def _stored(self) -> list[int]:
        return sorted(v for v, (name, _) in self._folders.items() if (self._root / name).is_dir())

    def _draft(self, version: int) -> Path:
        return self._root / f".draft-v{version:08d}"

    def _final(self, version: int) -> Path:
        return self._root / f"v{version:08d}"

    def _check(self, folder: Path, digest: str, header: Mapping[str, object]) -> None:
        """Check only that the manifest is the expected one; engines check the files."""
        data = manifest_bytes(folder)
        manifest = parse_manifest(data, folder / MANIFEST_FILE)
        found = {key: manifest.get(key) for key in header}
        if bytes_id(data) != digest or found != header:
            raise IntegrityError(
                f"{folder / MANIFEST_FILE} (digest {bytes_id(data)}, {found}) is not the one expected "
                f"({digest}, {header}): publish again."
            )

    # --- recording ---------------------------------------------------------------------------------

    def _reload_if_unsure(self) -> None:
        """Read the table again after a write whose outcome is unknown."""
        if self._unsure:
            self._load()

    def _recorded(self, step: int, *, published: bool) -> WeightRef | None:
        """The version that the last call recorded although it failed, if this call is its retry."""
        self._reload_if_unsure()
        last, self._last_try = self._last_try, None
        if last is None or last.version not in self._steps:
            return None
        return last if last.step == step and bool(last.path) == published else None

    def _record(self, step: int, path: str, digest: str) -> WeightRef:
        version = self._latest + 1
        base = _base(Path(path)) if path else ""
        ref = self._last_try = WeightRef(self._run_id, version, step, path, base)
        self._unsure = True
        row = {
            "run_id": self._run_id,
            "version": version,
            "step": step,
            "path": Path(path).name if path else "",
            "manifest_digest": digest,
            "rows": len(self._buffer),
        }
        self._buffer.add_rows("versions", [row])
        failpoint("publish.recorded")
        self._unsure, self._last_try = False, None
        self._latest = version
        self._steps[version] = step
        if path:
            self._folders[version] = (Path(path).name, digest)
        return ref

    def _prune(self) -> None:
        held = {self._final(version).name for version, holders in self._held.items() if holders > 0}
        for old in sorted(self._root.glob("v*"))[: -self._keep]:
            if old.name not in held:
                self._remove(old)
        for removed in self._root.glob(f"{_REMOVED}*"):  # left by a run that was killed while deleting
            shutil.rmtree(removed)

    def _remove(self, folder: Path) -> None:
        """Delete a folder; at any moment it is either whole or absent under its name."""
        if folder.exists():
            doomed = folder.with_name(f"{_REMOVED}{folder.name}")
            if doomed.exists():
                shutil.rmtree(doomed)
            folder.rename(doomed)
            fsync(self._root)  # or a power cut could keep the name and lose files
            shutil.rmtree(doomed)


def _base(folder: Path) -> str:
    """The folder of the model that a published adapter is merged into; empty for whole weights."""
    adapter = parse_manifest(manifest_bytes(folder), folder / MANIFEST_FILE).get("adapter")
    return "" if adapter is None else os.path.normpath(folder.absolute() / adapter["base"])
