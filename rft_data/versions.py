"""The registry of policy versions, and weight directories that are either complete or absent.

A version is issued for every optimizer step of a run and only grows; numbers may have gaps, so
distance is counted in optimizer steps (`step_of`), never by subtracting versions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.errors import IntegrityError
from rft_data.failpoints import failpoint
from rft_data.manifest import fsync, write_manifest
from rft_data.rows import WeightRef

_REMOVED = ".removed-"


class VersionRegistry:
    """Issues versions and publishes weights for one run."""

    def __init__(self, buffer: Buffer, run_id: str, root: Path, *, keep: int = 2) -> None:
        """`root` holds the weight directories; the newest `keep` stay on disk."""
        self._buffer = buffer
        self._run_id = run_id
        self._root = root
        self._keep = keep
        self._last_try: WeightRef | None = None
        self._load()

    def _load(self) -> None:
        rows = self._buffer.read("versions", ["run_id", "version", "step"]).to_pylist()
        self._steps: dict[int, int] = {
            row["version"]: row["step"] for row in rows if row["run_id"] == self._run_id
        }
        self._latest: int = max(self._steps, default=-1)
        self._unsure = False

    @property
    def latest(self) -> int:
        """The newest version issued; -1 before the first."""
        self._settle_doubt()
        return self._latest

    def step_of(self, version: int) -> int:
        """Optimizer steps behind a version's weights.

        Raises: IntegrityError for a version this run never issued.
        """
        self._settle_doubt()
        if version not in self._steps:
            raise IntegrityError(
                f"run '{self._run_id}' never issued policy version {version} (newest: {self._latest}); "
                "these rows belong to another run."
            )
        return self._steps[version]

    def issue(self, step: int) -> int:
        """The next version, for weights that are not published (no engine will serve them)."""
        return (self._recorded(step, published=False) or self._record(step, "", "")).version

    def _settle_doubt(self) -> None:
        """After a record whose outcome is not known: look what is there."""
        if self._unsure:
            self._load()

    def _recorded(self, step: int, *, published: bool) -> WeightRef | None:
        """What the last call recorded although it failed, when this call is its retry."""
        self._settle_doubt()
        last, self._last_try = self._last_try, None
        if last is None or last.version not in self._steps:
            return None
        return last if last.step == step and bool(last.path) == published else None

    def publish(self, step: int, save: Callable[[Path], None]) -> WeightRef:
        """Write a weight directory through `save` and issue its version.

        The directory appears under its final name only when complete: files, then a manifest with
        their digests, then fsync, then rename.
        """
        recorded = self._recorded(step, published=True)
        if recorded is not None:
            return recorded
        version = self._latest + 1
        final = self._root / f"v{version:08d}"
        draft = self._root / f".draft-v{version:08d}"
        for leftover in (draft, final):  # of a run killed before the version was recorded
            self._remove(leftover)
        draft.mkdir(parents=True)
        save(draft)
        digest = write_manifest(draft, {"run_id": self._run_id, "version": version, "step": step})
        failpoint("publish.written")
        draft.rename(final)
        fsync(self._root)
        failpoint("publish.renamed")
        ref = self._record(step, str(final), digest)
        self._prune()
        return ref

    def _record(self, step: int, path: str, digest: str) -> WeightRef:
        version = self._latest + 1
        ref = self._last_try = WeightRef(self._run_id, version, step, path)
        self._unsure = True
        self._buffer.add_rows(
            "versions",
            [
                {
                    "run_id": self._run_id,
                    "version": version,
                    "step": step,
                    "path": Path(path).name if path else "",
                    "manifest_digest": digest,
                    "rows": len(self._buffer),
                }
            ],
        )
        failpoint("publish.recorded")
        self._unsure, self._last_try = False, None
        self._latest = version
        self._steps[version] = step
        return ref

    def _prune(self) -> None:
        for old in sorted(self._root.glob("v*"))[: -self._keep]:
            self._remove(old)
        for removed in self._root.glob(f"{_REMOVED}*"):  # by a run that was killed while it did
            shutil.rmtree(removed)

    def _remove(self, folder: Path) -> None:
        """Delete a folder; under its own name it is whole or absent at any moment."""
        if folder.exists():
            doomed = folder.with_name(f"{_REMOVED}{folder.name}")
            if doomed.exists():
                shutil.rmtree(doomed)
            folder.rename(doomed)
            shutil.rmtree(doomed)
