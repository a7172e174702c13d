"""The recorded calls of a process, applied to a model of the disk one after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crash.disk import File, Folder, Naming, Node, Write, put, rename, settle
from benchmarks.crash.trace import Call


@dataclass(slots=True)
class Handle:
    """An open file or folder."""

    node: Node
    at: int = 0
    append: bool = False


class Disk:
    """The files under `root`, changed call by call."""

    def __init__(self, root: Path, forgotten: str = "") -> None:
        """`root` is an empty folder, and safe.

        `forgotten`: a pattern of paths below it; an fsync of one that it finds does nothing.
        """
        self._root = root
        self._forgotten = re.compile(forgotten) if forgotten else None
        self.top = Folder()
        self._open: dict[int, Handle] = {}
        self._opening: dict[int, Node] = {}
        self.changes = 0
        """Calls so far that changed what is there or what is safe."""

    # --- what the process did ----------------------------------------------------------------------

    def events(self, recorded: Iterator[Call]) -> list[tuple[int, Callable[[], None]]]:
        """The changes in order, each with its place in the record.

        A name or a byte may be on the disk as soon as its call begins, and is safe only if the call ended
        before the fsync began. A descriptor counts from the end of its `open`.
        """
        found: list[tuple[int, Callable[[], None]]] = []
        for call in recorded:
            if call.name in _OPENS:
                self._open_events(call, found)
            elif call.name in ("fsync", "fdatasync"):
                found.append((call.end, lambda call=call: self._sync(call)))  # type: ignore[misc]
            else:
                found.append((call.begin, lambda call=call: self._change(call)))  # type: ignore[misc]
        return sorted(found, key=lambda event: event[0])

    def _open_events(self, call: Call, found: list[tuple[int, Callable[[], None]]]) -> None:
        place = 1 if call.name == "openat" else 0
        path, flags = call.path(place), call.arguments[place + 1]
        names = self._names(path)
        if names is not None:
            found.append((call.begin, lambda: self._create(call, names, flags)))
        found.append((call.end, lambda: self._bind(call, names, flags)))

    def _create(self, call: Call, names: list[str], flags: str) -> None:
        if "O_CREAT" in flags and self._find(names) is None:
            self._name(call, (names, File()))
        node = self._find(names)
        if "O_TRUNC" in flags and isinstance(node, File) and node.content:
            self._write(node, Write(call.end, 0, None))
        if node is not None:  # at its end another thread may have renamed it
            self._opening[call.begin] = node

    def _bind(self, call: Call, names: list[str] | None, flags: str) -> None:
        node = self._opening.pop(call.begin, None) or (None if names is None else self._find(names))
        if node is None:
            self._open.pop(call.result, None)
        else:
            self._open[call.result] = Handle(node, append="O_APPEND" in flags)

    def _change(self, call: Call) -> None:
        if call.name in _WRITES:
            self._written(call)
        elif call.name == "lseek":
            handle = self._open.get(call.descriptor())
            if handle is not None and self._inside(call):
                handle.at = call.result
        elif call.name == "ftruncate":
            if self._inside(call):
                self._write(self._file(call), Write(call.end, int(call.arguments[1]), None))
        elif call.name in _NAMINGS:
            self._naming(call)
        elif call.name in ("sendfile", "copy_file_range", "fallocate", "sync_file_range", "syncfs"):
            if any(self._names(call.folder(place)) is not None for place in _descriptors(call)):
                raise NotImplementedError(f"{call.name} below {self._root}")
        else:
            raise NotImplementedError(f"{call.name}: the model of the disk does not know this call")

    def _written(self, call: Call) -> None:
        if not self._inside(call):
            return
        handle, data = self._open[call.descriptor()], call.text(1)[: call.result]
        file = self._file(call)
        if call.name == "pwrite64":
            self._write(file, Write(call.end, int(call.arguments[3]), data))
            return
        at = len(file.content) if handle.append else handle.at
        self._write(file, Write(call.end, at, data))
        handle.at = at + len(data)

    def _naming(self, call: Call) -> None:
        paths = [call.path(place) for place, text in enumerate(call.arguments) if text.startswith('"')]
        inside = [self._names(path) for path in paths]
        if all(names is None for names in inside):
            return
        names = [each for each in inside if each is not None]
        if len(names) < len(paths):
            raise NotImplementedError(f"{call.name} across {self._root}")
        if call.name.startswith("mkdir"):
            self._name(call, (names[0], Folder()))
        elif call.name.startswith(("unlink", "rmdir")):
            self._name(call, (names[0], None))
        elif call.name.startswith("link"):
            self._name(call, (names[1], self._known(names[0])))
        else:
            self._name(call, (names[0], None), (names[1], self._known(names[0])))

    def _sync(self, call: Call) -> None:
        handle = self._open.get(call.descriptor())
        names = self._names(call.folder(0))
        if handle is None or names is None:
            return
        if self._forgotten is not None and self._forgotten.search("/".join(names)):
            return
        self.changes += 1
        if isinstance(handle.node, File):
            settle(handle.node, call.begin)
        else:
            for naming in [each for each in handle.node.pending if each.ended < call.begin]:
                for folder in naming.folders:
                    folder.pending.remove(naming)
                rename(naming, "safe")

    # --- names and bytes ---------------------------------------------------------------------------

    def _names(self, path: Path) -> list[str] | None:
        """The names from the root to a path; None outside."""
        return list(path.relative_to(self._root).parts) if path.is_relative_to(self._root) else None

    def _find(self, names: list[str]) -> Node | None:
        node: Node | None = self.top
        for name in names:
            node = node.content.get(name) if isinstance(node, Folder) else None
        return node

    def _known(self, names: list[str]) -> Node:
        node = self._find(names)
        if node is None:
            raise LookupError(f"{'/'.join(names)} is used, and was never made")
        return node

    def _inside(self, call: Call) -> bool:
        return self._names(call.folder(0)) is not None

    def _file(self, call: Call) -> File:
        node = self._open[call.descriptor()].node
        assert isinstance(node, File)  # noqa: S101 - for the type checker
        return node

    def _name(self, call: Call, *named: tuple[list[str], Node | None]) -> None:
        self.changes += 1
        edits = []
        for names, node in named:
            folder = self._known(names[:-1])
            assert isinstance(folder, Folder)  # noqa: S101 - for the type checker
            edits.append((folder, names[-1], node))
        naming = Naming(call.end, tuple(edits))
        rename(naming, "content")
        for folder in naming.folders:
            folder.pending.append(naming)

    def _write(self, file: File, write: Write) -> None:
        self.changes += 1
        put(file.content, write.at, write.data)
        file.pending.append(write)


_OPENS = ("openat", "open", "creat")
_WRITES = ("write", "pwrite64")
_NAMINGS = (
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "mkdirat",
)


def _descriptors(call: Call) -> list[int]:
    return [place for place, text in enumerate(call.arguments) if text.endswith(">")]
