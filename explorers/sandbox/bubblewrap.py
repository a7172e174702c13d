"""The sandbox `bubblewrap`: namespaces of a program's own, in which almost nothing exists.

It sees the system's folders, its own file and its working folder, which is memory of a limited size. It has
no network, no other process, no `/proc`, no device but three, and no way to more namespaces.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from explorers.sandbox.box import PROGRAM, VARIABLES, Folders, Spawned, limited
from explorers.sandbox.languages import NOBODY, SYSTEM
from explorers.sandbox.limits import SandboxLimits
from explorers.sandbox.seccomp import denying_filter
from rft_data.core.errors import SandboxError

GIVEN, WORK = "/given", "/work"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


class Bubblewrap:
    """Starts programs through `bwrap`; the kernel ends all that a program started together with it."""

    def __init__(self, limits: SandboxLimits) -> None:
        """Raises: SandboxError without the command `bwrap`."""
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxError(
                "the command bwrap is not installed; your system's package manager has it as 'bubblewrap'."
            )
        self._bwrap = os.path.realpath(found)
        self._limits = limits

    def start(self, command: Sequence[str], folders: Folders) -> Spawned:
        """See `Box`."""
        inner = limited([*command, f"{GIVEN}/{PROGRAM}"], self._limits, memory=True, processes=True)
        filter_end = denying_filter()
        try:
            outer = [self._bwrap, *bubblewrap_arguments(folders, self._limits, filter_end), "--", *inner]
            return Spawned(outer, cwd=folders.given, pass_fds=[filter_end])
        except OSError as err:
            raise SandboxError(f"bwrap cannot be started: {err}") from err
        finally:
            os.close(filter_end)


def bubblewrap_arguments(folders: Folders, limits: SandboxLimits, filter_end: int) -> list[str]:
    """The options of bwrap. `filter_end`: file descriptor with a seccomp filter."""
    seen = [*SYSTEM, *folders.readable]
    links = [folder for folder in seen if Path(folder).is_symlink()]
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--clearenv", *(part for item in VARIABLES.items() for part in ("--setenv", *item))),
        *("--setenv", "HOME", WORK),
        *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox", "--cap-drop", "ALL"),
        *(part for folder in links for part in ("--symlink", os.readlink(folder), folder)),
        *(part for one in seen if one not in links for part in ("--ro-bind", one, one)),
        *("--dir", "/dev", *(part for one in _DEVICES for part in ("--dev-bind", one, one))),
        *("--ro-bind", str(folders.given), GIVEN),
        *("--size", str(limits.disk_mb << 20), "--tmpfs", WORK),
        *("--remount-ro", "/", "--chdir", WORK),
        *("--seccomp", str(filter_end)),
    ]
