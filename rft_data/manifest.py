"""Folders and files that are either complete or absent: written beside, flushed, renamed; manifests last."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rft_data.errors import IntegrityError
from rft_data.rows import bytes_id, canonical_json

MANIFEST_FILE = "manifest.json"


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step; a kill leaves the old one or the new one."""
    draft = _draft(path)
    draft.write_text(text)
    fsync(draft)
    draft.rename(path)
    fsync(path.parent)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")


def write_manifest(directory: Path, facts: dict[str, object]) -> str:
    """Write `manifest.json` (facts, and size and digest of every file) last, and fsync all.

    Returns: the manifest's own digest.
    """
    files = {}
    own = {MANIFEST_FILE, _draft(directory / MANIFEST_FILE).name}  # a killed write may have left a draft
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and p.name not in own):
        fsync(path)
        files[str(path.relative_to(directory))] = {"bytes": path.stat().st_size, "blake2b": file_digest(path)}
    text = canonical_json({**facts, "files": files})
    write_text(directory / MANIFEST_FILE, text)
    return bytes_id(text.encode())


def read_manifest(directory: Path) -> dict[str, Any]:
    """Check every file of a directory against its manifest and return the manifest.

    Raises: IntegrityError naming the first file that is missing or differs, or the missing manifest.
    """
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise IntegrityError(f"{directory} has no {MANIFEST_FILE}: it was not written completely.")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        files = dict(manifest["files"])
    except (ValueError, KeyError, TypeError) as err:
        raise IntegrityError(f"{path} is damaged: {err!r}.") from err
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
