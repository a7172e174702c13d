"""The start of one program: the protocol of every kind of sandbox, and code that several of them share."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from explorers.sandbox.limits import SandboxLimits

VARIABLES = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
"""The environment of every program, all of it."""
PROGRAM = "program"
"""Name of the file with the program."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of a program, for the time that it runs."""

    given: Path
    """Has its file; it may not write there."""
    work: Path
    """Its working folder, empty at first."""
    readable: tuple[str, ...]
    """Further paths that it may read."""


class Running(Protocol):
    """A program that was started."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def kill(self) -> None:
        """End it, at once; it may have ended."""
        ...

    def wait(self) -> int:
        """Wait for its end and read its exit status, negative for a signal."""
        ...


class Box(Protocol):
    """A kind of sandbox."""

    def start(self, command: Sequence[str], folders: Folders) -> Running:
        """Start an interpreter; it reads the program from the last argument, a name in `given`.

        Raises: SandboxError if it cannot be started.
        """
        ...


class Spawned:
    """A program that `subprocess` started."""

    def __init__(self, command: Sequence[str], *, cwd: Path, pass_fds: Sequence[int] = ()) -> None:
        """Raises: OSError."""
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(  # noqa: S603 - that is what it is for
            list(command),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            cwd=cwd,
            env=VARIABLES,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self.stdin: IO[bytes] = cast("IO[bytes]", self._popen.stdin)
        self.stdout: IO[bytes] = cast("IO[bytes]", self._popen.stdout)
        self.stderr: IO[bytes] = cast("IO[bytes]", self._popen.stderr)

    def kill(self) -> None:
        """See `Running`."""
        self._popen.kill()

    def wait(self) -> int:
        """See `Running`."""
        return self._popen.wait()


def limited(command: Sequence[str], limits: SandboxLimits, *, memory: bool, processes: bool) -> list[str]:
    """A command that sets limits of resources, which cannot be raised again, and becomes `command`.

    Args: memory, processes: whether to limit these too; a sandbox may do it better.
    """
    file_blocks = limits.disk_mb << 11
    script = [
        "ulimit -c 0",
        f"ulimit -t {int(limits.seconds) + 1}",
        f"ulimit -f {file_blocks}",
        f"ulimit -n {limits.open_files}",
    ]
    if memory:
        script.append(f"ulimit -v {limits.memory_mb << 10}")
    if processes:  # bash and dash spell it differently
        script.append(f"ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes}")
    return [
        "/bin/sh",
        "-c",
        " && ".join(f"{{ {line}; }}" for line in script) + ' && exec "$@"',
        "sh",
        *command,
    ]
