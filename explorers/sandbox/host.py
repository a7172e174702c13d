"""The child process that runs programs, one at a time: `python -m explorers.sandbox.host`.

It inherits the processes that a program leaves behind and kills them, also when its parent hangs up while a
program runs. As root it becomes `nobody` first. `sandbox.py` is the other side.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from explorers.sandbox.bare import Bare
from explorers.sandbox.box import PROGRAM, Box, Folders, Running
from explorers.sandbox.bubblewrap import Bubblewrap
from explorers.sandbox.landlock import LandlockBox
from explorers.sandbox.languages import NOBODY, find_interpreter
from explorers.sandbox.leftovers import (
    DiskQuota,
    children_are_told,
    kill_children,
    remove_folder,
    remove_stale,
)
from explorers.sandbox.limits import SandboxLimits
from explorers.sandbox.program import Program, Ran
from explorers.sandbox.watch import Watch
from rft_data.core.children import connected
from rft_data.core.errors import RftError, SandboxError
from rft_data.core.words import ProgramEnd, SandboxKind

BOXES: Mapping[SandboxKind, Callable[[SandboxLimits], Box]] = {
    SandboxKind.BUBBLEWRAP: Bubblewrap,
    SandboxKind.LANDLOCK: LandlockBox,
    SandboxKind.NONE: Bare,
}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_HUNG_UP = 1
FOLDER_PREFIX = "rft-sandbox-"
"""Beginning of the name of a program's folder; its host's process id and a random word follow."""


class Host:
    """Runs programs in one kind of sandbox."""

    def __init__(self, kind: SandboxKind, limits: SandboxLimits, parent: socket.socket) -> None:
        """Raises: SandboxError, MissingExtraError where this kind cannot be."""
        if sys.platform != "linux" or not children_are_told():
            raise SandboxError("programs of a model can be run on Linux only, with CONFIG_PROC_CHILDREN.")
        self._box: Box = BOXES[kind](limits)
        self._limits = limits
        self._bounds_disk = kind == SandboxKind.BUBBLEWRAP
        """Whether the working folder cannot grow beyond its limit by itself."""
        self._parent = parent
        _inherit_orphans()
        if os.geteuid() == 0:
            _become_nobody()
        remove_stale(FOLDER_PREFIX)

    def run(self, program: Program) -> Ran:
        """Run a program to its end. Raises: SandboxError; EOFError when the parent hung up."""
        interpreter = find_interpreter(program.language)
        began = time.monotonic()
        try:
            root = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        except OSError as err:
            raise SandboxError(f"a program has no working folder: {err}; name another with TMPDIR.") from err
        folders = Folders(root / "given", root / "work", interpreter.needs)
        try:
            for folder in (folders.given, folders.work):
                folder.mkdir(mode=0o755)
            (folders.given / PROGRAM).write_text(program.source, "utf-8", "surrogatepass")
            running = self._box.start([interpreter.path, *interpreter.arguments], folders)
            return self._watched(running, program, folders, began)
        finally:
            kill_children()
            remove_folder(root)

    def _watched(self, running: Running, program: Program, folders: Folders, began: float) -> Ran:
        limits = self._limits
        quota = DiskQuota(folders.work, limits.disk_mb << 20)
        watch = Watch(running, program.stdin.encode("utf-8", "surrogatepass"), limits.output_kb << 10)
        seconds = limits.seconds if program.seconds is None else min(program.seconds, limits.seconds)
        ended = os.pidfd_open(running.pid)
        try:
            why = watch.until_over(
                ended,
                self._parent.fileno(),
                began + seconds,
                lambda: not self._bounds_disk and quota.is_over(),
            )
            if why is not None:
                running.kill()
            status = running.wait()
            kill_children()
            why = watch.drain() or why
            took = time.monotonic() - began
        finally:
            watch.close()
            os.close(ended)
        end = why or (ProgramEnd.EXITED if status >= 0 else ProgramEnd.KILLED)
        return Ran(end, status if end == ProgramEnd.EXITED else 0, *watch.texts, seconds=took)


def main() -> None:
    """Make the sandbox of the first line; run the program of each further one until the parent hangs up."""
    channel = connected()
    lines = channel.makefile("rb")
    request = json.loads(lines.readline())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        host = Host(SandboxKind(request["kind"]), SandboxLimits(**request["limits"]), channel)
    except RftError as err:
        _send(channel, {"error": str(err)})
        return
    try:
        _send(channel, {})
        for line in lines:
            _send(channel, _answer(host, Program(**json.loads(line))))
    except (EOFError, ConnectionError):  # the parent hung up while a program ran
        sys.exit(_HUNG_UP)


def _answer(host: Host, program: Program) -> dict[str, object]:
    try:
        return asdict(host.run(program))
    except RftError as err:
        return {"error": str(err)}


def _send(channel: socket.socket, answer: Mapping[str, object]) -> None:
    channel.sendall(json.dumps(answer).encode() + b"\n")


def _inherit_orphans() -> None:
    """Become the parent of descendants whose parents end; and be told of this process's parent's end by EOF.

    A signal at that end would kill this process before it has killed what the program left behind.
    """
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    library.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def _become_nobody() -> None:
    """Give up root's rights for good."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # the kernel hides /proc/self of a process that changed its user, and sandlock reads it
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    with suppress(OSError):
        os.chdir("/")


if __name__ == "__main__":
    main()
