"""The registry of policy versions, and weight directories that are either complete or absent.

A version is issued for every optimizer step of a run and only grows; numbers may have gaps, so
distance is counted in optimizer steps (`step_of`), never by subtracting versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.errors import IntegrityError
from rft_data.rows import WeightRef, canonical_json

MANIFEST_FILE = "manifest.json"


class VersionRegistry:
    """Issues versions and publishes weights for one run."""

    def __init__(self, buffer: Buffer, run_id: str, root: Path, *, keep: int = 2) -> None:
        """`root` holds the weight directories; the newest `keep` stay on disk."""
        self._buffer = buffer
        self._run_id = run_id
        self._root = root
        self._keep = keep
        self._steps: dict[int, int] = {}
        rows = buffer.read("versions", ["run_id", "version", "step"]).to_pylist()
        self._steps = {row["version"]: row["step"] for row in rows if row["run_id"] == run_id}
        self._latest = max(self._steps, default=-1)

    @property
    def latest(self) -> int:
        """The newest version issued; -1 before the first."""
        return self._latest

    def step_of(self, version: int) -> int:
        """Optimizer steps behind a version's weights.

        Raises: IntegrityError for a version this run never issued.
        """
        if version not in self._steps:
            raise IntegrityError(
                f"run '{self._run_id}' never issued policy version {version} (newest: {self._latest}); "
                "these rows belong to another run."
            )
        return self._steps[version]

    def issue(self, step: int) -> int:
        """The next version, for weights that are not published (no engine will serve them)."""
        return self._record(step, "", "").version

    def publish(self, step: int, save: Callable[[Path], None]) -> WeightRef:
        """Write a weight directory through `save` and issue its version.

        The directory appears under its final name only when complete: files, then a manifest with
        their digests, then fsync, then rename.
        """
        version = self._latest + 1
        final = self._root / f"v{version:08d}"
        draft = self._root / f".draft-v{version:08d}"
        for leftover in (draft, final):  # of a run killed before the version was recorded
            if leftover.exists():
                shutil.rmtree(leftover)
        draft.mkdir(parents=True)
        save(draft)
        digest = write_manifest(draft, {"run_id": self._run_id, "version": version, "step": step})
        draft.rename(final)
        fsync(self._root)
        ref = self._record(step, str(final), digest)
        self._prune()
        return ref

    def _record(self, step: int, path: str, digest: str) -> WeightRef:
        version = self._latest + 1
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
        self._latest = version
        self._steps[version] = step
        return WeightRef(self._run_id, version, step, path)

    def _prune(self) -> None:
        for old in sorted(self._root.glob("v*"))[: -self._keep]:
            shutil.rmtree(old)


def write_manifest(directory: Path, facts: dict[str, object]) -> str:
    """Write `manifest.json` (facts, and size and digest of every file) last, and fsync all.

    Returns: the manifest's own digest.
    """
    files = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST_FILE):
        fsync(path)
        files[str(path.relative_to(directory))] = {"bytes": path.stat().st_size, "blake2b": file_digest(path)}
    text = canonical_json({**facts, "files": files})
    draft = directory / f".{MANIFEST_FILE}"
    draft.write_text(text)
    fsync(draft)
    draft.rename(directory / MANIFEST_FILE)
    fsync(directory)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_manifest(directory: Path) -> dict[str, object]:
    """Check every file of a directory against its manifest and return the manifest.

    Raises: IntegrityError naming the first file that is missing or differs, or the missing manifest.
    """
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise IntegrityError(f"{directory} has no {MANIFEST_FILE}: it was not written completely.")
    manifest: dict[str, object] = json.loads(path.read_text())
    files = manifest["files"]
    if not isinstance(files, dict):
        raise IntegrityError(f"{path}: 'files' is not a map; the manifest is damaged.")
    for name, facts in files.items():
        file = directory / name
        if not file.is_file():
            raise IntegrityError(f"{directory} lacks '{name}', which its manifest lists.")
        if file.stat().st_size != facts["bytes"] or file_digest(file) != facts["blake2b"]:
            raise IntegrityError(f"{file} does not match the digest in its manifest: it is damaged.")
    return manifest


def file_digest(path: Path) -> str:
    """blake2b-128 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def fsync(path: Path) -> None:
    """Flush a file or a directory entry to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
