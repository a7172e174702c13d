"""The sandbox `landlock`: Landlock and seccomp through the package sandlock, without namespaces or rights.

It refuses what Landlock cannot: changing the mode, owner, times or attributes of files, wherever they are.
What it cannot hide: names, sizes and times of files whose path the program knows.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from explorers.sandbox.box import PROGRAM, VARIABLES, Folders, limited
from explorers.sandbox.languages import SYSTEM
from explorers.sandbox.limits import SandboxLimits
from rft_data.core.errors import SandboxError
from rft_data.core.lookup import need

if TYPE_CHECKING:
    from sandlock import Process

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_REFUSED = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr"),
    *("removexattr", "lremovexattr", "fremovexattr", "setxattrat", "removexattrat"),
    *("listen", "memfd_create", "memfd_secret", "ptrace", "userfaultfd", "io_uring_setup", "bpf"),
)
"""System calls refused beyond sandlock's own list."""


_WAIT_S = 5.0
"""Seconds to wait for the end of a program that was killed, or has ended."""


class LandlockBox:
    """Starts programs through sandlock, whose supervisor is in this process."""

    def __init__(self, limits: SandboxLimits) -> None:
        """Raises: SandboxError without the package or on a kernel that is too old for it."""
        self._library = need("sandlock", "sandbox", "the sandbox 'landlock'")
        found, wanted = self._library.landlock_abi_version(), self._library.min_landlock_abi()
        if found < wanted:
            has = f"Landlock {found}" if found > 0 else "no Landlock"
            raise SandboxError(f"this kernel has {has}; the package sandlock needs Landlock {wanted}.")
        self._limits = limits

    def start(self, command: Sequence[str], folders: Folders) -> Confined:
        """See `Box`."""
        limits = self._limits
        readable = [*SYSTEM, *_DEVICES, *folders.readable, str(folders.given)]
        mode = self._library.StdioMode.PIPED
        sandbox = self._library.Sandbox(
            fs_readable=readable,
            fs_writable=[str(folders.work), "/dev/null"],
            cwd=str(folders.work),
            clean_env=True,
            env={**VARIABLES, "HOME": str(folders.work)},
            max_memory=limits.memory_mb << 20,
            max_processes=limits.processes,
            max_open_files=limits.open_files,
            extra_deny_syscalls=_REFUSED,
        )
        inner = limited([*command, str(folders.given / PROGRAM)], limits, memory=False, processes=False)
        try:
            return Confined(sandbox.popen(inner, stdin=mode, stdout=mode, stderr=mode))
        except (RuntimeError, OSError, ValueError, self._library.SandlockError) as err:
            raise SandboxError(f"sandlock cannot start a program here: {err}") from err


class Confined:
    """A program that sandlock started."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = int(process.pid)
        self.stdin: IO[bytes] = process.stdin
        self.stdout: IO[bytes] = process.stdout
        self.stderr: IO[bytes] = process.stderr

    def kill(self) -> None:
        """See `Running`."""
        self._process.kill()  # its process group, which it may have left
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """See `Running`."""
        result = self._process.wait(_WAIT_S)
        if result.exit_code >= 0:
            return int(result.exit_code)
        return -int(result.signal) if result.signal > 0 else -9
