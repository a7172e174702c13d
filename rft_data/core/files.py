"""Folders and files that are complete or absent: written under a draft name, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rft_data.core.canonical import bytes_id, canonical_json
from rft_data.core.errors import IntegrityError
from rft_data.core.rows import FileFacts

MANIFEST_FILE = "manifest.json"

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Names of tensors, each with its dtype as safetensors writes it (`F32`, `BF16`) and its shape."""

_MAX_HEADER_BYTES = 100_000_000


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step; after a kill there is either the old or the new file."""
    draft = _draft(path)
    draft.write_text(text)
    fsync(draft)
    draft.rename(path)
    fsync(path.parent)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")


def write_manifest(
    directory: Path, facts: Mapping[str, object], files: Mapping[str, FileFacts] | None = None
) -> str:
    """Write and fsync `manifest.json`, after all other files of the folder.

    It holds `facts`, size and digest of every file, and the tensors of the safetensors files directly in
    the folder (none for an incomplete file).
    Args: files: the result of `flush`, if the writer of the files has called it already.
    Returns: the manifest's own digest.
    Raises: IntegrityError if the folder has other files than `files`.
    """
    files = flush(directory) if files is None else _still_there(directory, files)
    listed = {name: {"bytes": file.bytes, "blake2b": file.blake2b} for name, file in files.items()}
    text = canonical_json({**facts, "files": listed, "tensors": tensors_in(directory)})
    write_text(directory / MANIFEST_FILE, text)
    return bytes_id(text.encode())


def flush(directory: Path) -> dict[str, FileFacts]:
    """Fsync the files of a folder, its manifest apart, and the folders in it. About 1 s per GB.

    Returns: size and digest of every file.
    """
    for folder in directory.rglob("*/"):
        fsync(folder)
    found = {}
    for name, path in _files_in(directory).items():
        fsync(path)
        found[name] = FileFacts(path.stat().st_size, file_digest(path))
    return found


def _files_in(directory: Path) -> dict[str, Path]:
    own = {MANIFEST_FILE, _draft(directory / MANIFEST_FILE).name}  # a killed write may have left a draft
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name not in own)
    return {str(path.relative_to(directory)): path for path in paths}


def _still_there(directory: Path, files: Mapping[str, FileFacts]) -> Mapping[str, FileFacts]:
    found = {name: path.stat().st_size for name, path in _files_in(directory).items()}
    wanted = {name: file.bytes for name, file in files.items()}
    if found != wanted:
        other = sorted(name for name, _ in found.items() ^ wanted.items())
        raise IntegrityError(
            f"{directory} is not as it was written: {other[:5]} are missing, new or of another size; is "
            "another process writing there?"
        )
    return files


def parse_manifest(data: bytes, where: object) -> dict[str, Any]:
    """A manifest's content. `where` names it in errors.

    Raises: IntegrityError when it is damaged.
    """
    try:
        manifest: dict[str, Any] = json.loads(data)
        dict(manifest["files"])
    except (ValueError, KeyError, TypeError) as err:
        raise IntegrityError(f"{where} is damaged: {err!r}.") from err
    return manifest


def manifest_bytes(directory: Path) -> bytes:
    """The manifest file as it is.

    Raises: IntegrityError when there is none.
    """
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise IntegrityError(f"{directory} has no {MANIFEST_FILE}: it was not written completely.")
    return path.read_bytes()


def read_manifest(directory: Path) -> dict[str, Any]:
    """Check every file of a directory against its manifest and return the manifest.

    Raises: IntegrityError naming the first file that is missing or differs, or the missing manifest.
    """
    manifest = parse_manifest(manifest_bytes(directory), directory / MANIFEST_FILE)
    for name, facts in manifest["files"].items():
        file = directory / name
        if not file.is_file():
            raise IntegrityError(f"{directory} lacks '{name}', which its manifest lists.")
        if file.stat().st_size != facts["bytes"] or file_digest(file) != facts["blake2b"]:
            raise IntegrityError(f"{file} does not match the digest in its manifest: it is damaged.")
    return manifest


def folder_bytes(directory: Path) -> int:
    """Bytes of a folder's `weight_files`; 0 if it is gone."""
    return sum(path.stat().st_size for path in weight_files(directory))


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files directly in a folder, by name; a probe is in its own folder."""
    return sorted(directory.glob("*.safetensors"))


def tensors_in(directory: Path) -> Tensors:
    """The tensors in the headers of a folder's `weight_files`."""
    found: Tensors = {}
    for path in weight_files(directory):
        with path.open("rb") as file:
            found.update(safetensors_header(file.read, path.stat().st_size))
    return found


def safetensors_header(read: Callable[[int], bytes], size: int) -> Tensors:
    """The tensors of a safetensors file of `size` bytes, `read` from its start; empty if it is incomplete."""
    length = int.from_bytes(read(8), "little")
    if not 0 < length <= min(size, _MAX_HEADER_BYTES):
        return {}
    try:
        entries = dict(json.loads(read(length)))
        entries.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in entries.values()]
        found = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, IndexError):
        return {}
    return found if 8 + length + max(ends, default=0) == size else {}


def file_digest(path: Path) -> str:
    """blake2b-128 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, so that their names survive a power cut."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        fsync(path.parent)


def fsync(path: Path) -> None:
    """Flush a file's bytes, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
