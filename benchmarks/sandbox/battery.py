"""The battery of hostile programs: runs each and finds out what it could do, and what it left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from explorers.sandbox import Program, Ran, Sandbox, SandboxLimits
from explorers.sandbox.host import FOLDER_PREFIX
from explorers.sandbox.languages import NOBODY
from rft_data.core.words import ProgramEnd

LIMITS = SandboxLimits(seconds=5.0, memory_mb=96, processes=8, open_files=64, disk_mb=8, output_kb=64)
SECRET = "RFT_HOSTILE_SECRET"  # noqa: S105 - the name of a variable
HOST = "explorers.sandbox.host"
_ENDLESS_S = 0.5
_HERE = Path(__file__).parent
_CONTENT = "not yours"
_SLEEP = "sleep 1000"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One program and the ends that are right."""

    name: str
    source: str
    ends: tuple[ProgramEnd, ...]
    language: str = "python"

    @property
    def seconds(self) -> float:
        """Little where it is to run out of time; much elsewhere, for a busy machine."""
        return _ENDLESS_S if ProgramEnd.TIMEOUT in self.ends else LIMITS.seconds


def hostile_programs() -> list[Hostile]:
    """The programs of hostile.yaml."""
    rows: list[dict[str, Any]] = YAML(typ="safe").load(_HERE / "hostile.yaml")
    return [Hostile(**{**row, "ends": tuple(map(ProgramEnd, row["ends"]))}) for row in rows]


class Outside:
    """Things outside for programs to reach, and whether one did."""

    def __init__(self, stack: ExitStack) -> None:
        """All of it ends with the stack."""
        temporary = tempfile.TemporaryDirectory(prefix="rft-outside-", ignore_cleanup_errors=True)
        self._folder = Path(stack.enter_context(temporary))
        self._folder.chmod(0o777)
        self._file = self._folder / "file"
        self._unix_path = self._folder / "socket"
        self._tcp, self._udp = (
            stack.enter_context(socket.socket(socket.AF_INET, kind))
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        )
        self._tcp.bind(("127.0.0.1", 0))
        self._udp.bind(self._tcp.getsockname())
        self._unix, self._abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        self._unix.bind(str(self._unix_path))
        self._unix_path.chmod(0o777)
        self._abstract.bind(f"\0{self._folder.name}")
        for end in (self._tcp, self._unix, self._abstract):
            end.listen()
        for end in (self._tcp, self._udp, self._unix, self._abstract):
            end.setblocking(False)
        self._canary = stack.enter_context(_same_user_process())
        self._file.write_text(_CONTENT)
        if os.geteuid() == 0:  # its modes would be a program's to change
            os.chown(self._file, NOBODY, NOBODY)
        self._file.chmod(0o666)
        self._before = self._look()

    def values(self) -> str:
        """Values of the prelude's FILE, FOLDER, TCP, UNIX, ABSTRACT, PID and HOME, as Python."""
        port = self._tcp.getsockname()[1]
        home = str(Path.home())
        names = (str(self._file), str(self._folder), port, str(self._unix_path), self._folder.name)
        return repr((*names, self._canary.pid, home))

    def reached(self) -> list[str]:
        """Traces of a program out here."""
        found = [] if self._look() == self._before else ["changed files outside"]
        for name in ("_tcp", "_udp", "_unix", "_abstract"):
            end: socket.socket = getattr(self, name)
            try:
                end.recv(1) if name == "_udp" else end.accept()
            except BlockingIOError:
                continue
            found.append(f"reached the socket {name.strip('_')}")
        if self._canary.poll() is not None:
            found.append("ended a process outside")
        return found

    def _look(self) -> object:
        stat = self._file.stat()
        kept = (stat.st_mode, stat.st_uid, stat.st_nlink, stat.st_mtime_ns, os.listxattr(self._file))
        folder = self._folder.stat()
        return kept, self._file.read_text(), sorted(os.listdir(self._folder)), folder.st_mode


@contextmanager
def outside() -> Iterator[Outside]:
    """Everything that programs must not reach, with a secret in this process's environment."""
    with ExitStack() as stack:
        os.environ[SECRET] = "1"
        stack.callback(os.environ.pop, SECRET)
        yield Outside(stack)


def escapes(sandbox: Sandbox, program: Hostile, out: Outside) -> tuple[Ran, list[str]]:
    """How a program ended, and everything it could do or left behind: nothing, in a sandbox that holds.

    Raises: SandboxError if it broke the sandbox.
    """
    ran = sandbox.run(Program(program.language, _whole(program, out), seconds=program.seconds))
    found = [line for line in ran.stdout.splitlines() if line.startswith("ESCAPED")]
    if ran.end not in program.ends:
        found.append(f"ended as {ran.end} (status {ran.status}): {ran.stderr[-200:]}")
    return ran, [*found, *out.reached(), *left_behind()]


def hosts() -> list[int]:
    """The processes of this one's sandboxes, in which programs run."""
    found = []
    for pid in _below(os.getpid()):
        with suppress(OSError):  # it has ended
            if HOST.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def left_behind() -> list[str]:
    """Processes under the hosts, and files in their folders, once no program runs."""
    found = [f"left process {pid}" for host in hosts() for pid in _below(host)]
    for host in hosts():
        for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}{host}-*"):
            found.append(f"left {folder}")
    return found + [f"left {path}" for path in _TRACES if Path(path).exists()]


_TRACES = ("/tmp/rft-hostile", "/var/tmp/rft-hostile", "/dev/shm/rft-hostile")  # noqa: S108 - must not exist


def _whole(program: Hostile, out: Outside) -> str:
    if program.language != "python":
        return program.source
    prelude = (_HERE / "prelude.py").read_text()
    return prelude.replace("= OUTSIDE ", f"= {out.values()} ") + program.source


def _below(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


def _same_user_process() -> subprocess.Popen[bytes]:
    """A process of the user that programs run as, which only sleeps."""
    given = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return _Ending(_SLEEP.split(), **given)


class _Ending(subprocess.Popen[bytes]):
    """A process that is killed at the end of a `with` block."""

    def __exit__(self, *problem: Any) -> None:
        self.kill()
        super().__exit__(*problem)
