"""Calls of a process on its files, in order: recorded by strace, which sees every call of every thread."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHANGES = (
    "openat,open,creat,openat2,lseek,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,"
    "fsync,fdatasync,sync,syncfs,sync_file_range,copy_file_range,sendfile"
)
_WHOLE = 1 << 26
"""Longest text of a call that is recorded whole, in bytes."""
_LINE = re.compile(r"(\d+) +(.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(?:<.*>)?(?: \w+ \(.*\))?")
_UNFINISHED = " <unfinished ...>"
_FD = re.compile(r"(AT_FDCWD|-?\d+)<((?:\\x[0-9a-f]{2})*)>(?:\(deleted\))?")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded."""

    begin: int
    """Place of its begin in the record."""
    end: int
    """Place of its end; a call that another thread began in between ran beside it."""
    name: str
    arguments: tuple[str, ...]
    """As strace writes them, every text in hexadecimal."""
    result: int

    def folder(self, place: int) -> Path:
        """The path of an argument that is a descriptor."""
        return Path(_decoded(_descriptor(self.arguments[place])[2]).decode())

    def descriptor(self, place: int = 0) -> int:
        """The number of an argument that is a descriptor."""
        return int(_descriptor(self.arguments[place])[1])

    def text(self, place: int) -> bytes:
        """An argument that is text."""
        found = _TEXT.fullmatch(self.arguments[place])
        if found is None:
            raise ValueError(f"{self.name}: {self.arguments[place][:80]!r} is not recorded whole")
        return _decoded(found[1])

    def path(self, place: int) -> Path:
        """An argument that is a path, with the folder before it if it is relative to one."""
        path = Path(self.text(place).decode())
        at_folder = place and _FD.fullmatch(self.arguments[place - 1])
        return self.folder(place - 1) / path if at_folder else path


def has_strace() -> bool:
    """Whether strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-o", os.devnull, "true"]
    tried = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    return tried.returncode == 0


def record(command: Sequence[str], file: Path, cwd: Path) -> int:
    """Run a command and write what it does to `file`; returns its exit code."""
    options = ["-f", "--seccomp-bpf", "-y", "-qq", "-xx", "-s", str(_WHOLE), "-e", "signal=none"]
    traced = ["strace", *options, "-e", f"trace={CHANGES}", "-o", str(file), *command]
    return subprocess.run(traced, cwd=cwd, check=False).returncode  # noqa: S603


def calls(file: Path) -> Iterator[Call]:
    """The recorded calls that succeeded, in the order in which they ended."""
    begun: dict[str, tuple[int, str]] = {}
    with file.open(encoding="ascii") as lines:
        for place, line in enumerate(lines):
            thread, text = _matched(_LINE, line.rstrip("\n")).groups()
            begin = place
            if text.endswith(_UNFINISHED):
                begun[thread] = (place, text.removesuffix(_UNFINISHED))
                continue
            resumed = _RESUMED.fullmatch(text)
            if resumed is not None:
                begin, before = begun.pop(thread)
                text = before + resumed[2]
            if text.startswith(("+++", "---")):
                continue
            name, arguments, result = _matched(_CALL, text).groups()
            if result != "?" and int(result) >= 0:
                yield Call(begin, place, name, tuple(arguments.split(", ")), int(result))


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"strace wrote a line that is not understood: {text[:200]}")
    return found


def _descriptor(argument: str) -> re.Match[str]:
    return _matched(_FD, argument)


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
