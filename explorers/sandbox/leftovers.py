"""Leftovers of a program, while it runs and after: processes, files, room on the disk."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rft_data.core.errors import SandboxError

_DEEPEST = 64
"""Folders within folders that a program may make."""
_ENTRY_BYTES = 4096
"""The least that an entry of a folder counts."""
_KILL_S = 5.0
_HIDDEN_S = 1.0
"""How long a process may be closed to us: one that is being started in a sandbox is, for a moment."""


def children() -> set[int]:
    """Processes whose parent is this one."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError):  # the thread has ended
            found |= _children(f"/proc/self/task/{thread}")
    return found


def children_are_told() -> bool:
    """Whether the kernel tells a process's children (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def kill_children() -> None:
    """Kill every child of this process, those that it inherits from them too, until none is left.

    Raises: SandboxError if one does not end.
    """
    end = time.monotonic() + _KILL_S
    while found := children():
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if time.monotonic() > end:
            raise SandboxError(f"processes {sorted(found)} of a program did not end when they were killed.")
        if children():
            time.sleep(0.001)


class DiskQuota:
    """How much a program keeps on the disk, looked at again and again while it runs."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """`folder`: where it may write."""
        self._folder = folder
        self._most = most_bytes
        self._hidden_since: float | None = None

    def is_over(self) -> bool:
        """Whether it keeps more than it may, or hides what it keeps for longer than a start can take.

        Counted are the folder's files, and files that were deleted and are still open.
        """
        held = _open_and_deleted(self._most)
        if held is None:
            self._hidden_since = self._hidden_since or time.monotonic()
            if time.monotonic() - self._hidden_since > _HIDDEN_S:
                return True
        else:
            self._hidden_since = None
        return _is_larger(self._folder, self._most - (held or 0))


def _is_larger(folder: Path, most_bytes: int) -> bool:
    """Whether a folder's entries take more room, or lie deeper than _DEEPEST."""
    left, waiting = most_bytes, [(folder, 0)]
    while waiting and left >= 0:
        one, depth = waiting.pop()
        if depth > _DEEPEST:
            return True
        with suppress(FileNotFoundError):  # it was deleted meanwhile
            for entry in _entries(one):
                with suppress(FileNotFoundError):
                    left -= max(_ENTRY_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((Path(entry.path), depth + 1))
    return left < 0


def remove_folder(folder: Path) -> None:
    """Delete a folder, however deep it is and whatever modes its folders have.

    Folders are moved to the top before they are deleted, so no path becomes longer than the system allows.
    """
    while entries := _entries(folder):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            for inner in _entries(Path(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)
                    os.rename(inner.path, folder / secrets.token_hex(16))
                else:
                    os.unlink(inner.path)
            os.rmdir(entry.path)
    os.rmdir(folder)


def remove_stale(prefix: str) -> None:
    """Delete folders named `prefix`, id, word, which hosts that were killed amid a program left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError):  # it is another user's, or another host deletes it too
            if not Path(f"/proc/{pid}").exists() and folder.stat().st_uid == os.geteuid():
                remove_folder(folder)


def _children(task: str) -> set[int]:
    with open(f"{task}/children") as lines:
        return {int(pid) for pid in lines.read().split()}


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except PermissionError:
        os.chmod(folder, 0o700)
        with os.scandir(folder) as found:
            return list(found)


def _open_and_deleted(enough: int) -> int | None:
    """Bytes of deleted files that descendants hold open, up to about `enough`; None if one hides them."""
    waiting, total = list(children()), 0
    while waiting and total <= enough:
        pid = waiting.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                waiting += _children(f"/proc/{pid}/task/{thread}")
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(FileNotFoundError):
                    found = os.stat(f"/proc/{pid}/fd/{name}")
                    total += 0 if found.st_nlink else found.st_blocks * 512
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            if _is_alive(pid):
                return None
    return total


def _is_alive(pid: int) -> bool:
    """Whether a process still has memory: one that ends is closed to us too."""
    try:
        return Path(f"/proc/{pid}/statm").read_text().split()[0] != "0"
    except OSError:
        return False
