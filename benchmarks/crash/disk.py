"""A disk under a folder, as strict as POSIX allows: what no fsync has forced down may be lost, each write and
each name by itself.

A file's bytes are safe after an fsync of the file, a name after an fsync of its folder. A rename happens
whole or not at all. This is stricter than ext4, XFS or btrfs, which keep more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(eq=False, slots=True)
class Write:
    """Bytes written at a place of a file, or (no bytes) the file's new size."""

    ended: int
    at: int
    data: bytes | None


@dataclass(eq=False, slots=True)
class File:
    """A file: its bytes as a reader sees them, those that are safe, and what is not safe yet."""

    content: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Folder:
    """A folder, as `File`, with names for bytes."""

    content: dict[str, Node] = field(default_factory=dict)
    safe: dict[str, Node] = field(default_factory=dict)
    pending: list[Naming] = field(default_factory=list)


Node = File | Folder


@dataclass(eq=False, slots=True)
class Naming:
    """One change of names: made, linked, removed, or renamed, in one folder or between two."""

    ended: int
    names: tuple[tuple[Folder, str, Node | None], ...]

    @property
    def folders(self) -> list[Folder]:
        """The one folder or the two."""
        return list({id(folder): folder for folder, _, _ in self.names}.values())


@dataclass(frozen=True, slots=True)
class Cut:
    """Those of the pending changes that are on the disk when the power goes."""

    naming: Callable[[Naming], bool]
    written: Callable[[Write], bytes | None]
    """The bytes that a write leaves, None if it leaves nothing."""


def rename(naming: Naming, where: str) -> None:
    """Apply a change of names to the folders' `content` or `safe` names."""
    for folder, name, node in naming.names:
        names: dict[str, Node] = getattr(folder, where)
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def put(content: bytearray, at: int, data: bytes | None) -> None:
    """Write into a file's bytes, or cut or extend them to `at`."""
    if data is None:
        del content[at:]
    content.extend(bytes(max(0, at - len(content))))
    if data is not None:
        content[at : at + len(data)] = data


def settle(file: File, begin: int) -> None:
    """An fsync that began at `begin`: what was written before is safe."""
    for write in [each for each in file.pending if each.ended < begin]:
        put(file.safe, write.at, write.data)
        file.pending.remove(write)


def left_over(top: Folder, cut: Cut, target: Path) -> None:
    """Write what a power cut leaves of a disk into a new folder."""
    target.mkdir(parents=True)
    _leave(top, cut, target)


def _leave(folder: Folder, cut: Cut, target: Path) -> None:
    names = dict(folder.safe)
    for naming in folder.pending:
        for where, name, node in naming.names if cut.naming(naming) else ():
            if where is folder:
                names.pop(name, None) if node is None else names.update({name: node})
    for name, node in names.items():
        if isinstance(node, Folder):
            (target / name).mkdir()
            _leave(node, cut, target / name)
        else:
            (target / name).write_bytes(remains(node, cut))


def remains(file: File, cut: Cut) -> bytes:
    """A file's bytes after a power cut."""
    content = bytearray(file.safe)
    for write in file.pending:
        left = cut.written(write)
        if left is not None:
            put(content, write.at, None if write.data is None else left)
    return bytes(content)


def cuts(rng: np.random.Generator) -> dict[str, Cut]:
    """Ways in which a power cut may go, from the worst to a random one."""
    share, torn = float(rng.choice([0.2, 0.5, 0.8])), rng
    fates: dict[int, bool] = {}

    def fate(change: Naming | Write) -> bool:
        return fates.setdefault(id(change), bool(rng.random() < share))

    def piece(write: Write) -> bytes | None:
        if not fate(write):
            return None
        data, kind = write.data or b"", torn.random()
        if kind < 0.2:
            return data[: int(torn.integers(len(data) + 1))]
        return bytes(len(data)) if kind < 0.3 else data

    return {
        "nothing unsynced": Cut(lambda _: False, lambda _: None),
        "names without bytes": Cut(lambda _: True, lambda _: None),
        "bytes without names": Cut(lambda _: False, lambda write: write.data or b""),
        "anything": Cut(fate, piece),
    }
