"""Finds a kind of sandbox that holds on this machine, by running a harmless program that tries to get out.

The program reports everything that it could do. A sandbox is taken only if that is nothing, so the limits are
proved before a hostile program runs.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from explorers.sandbox.limits import SandboxLimits
from explorers.sandbox.program import Program
from explorers.sandbox.sandbox import Sandbox
from rft_data.core.errors import RftError, SandboxError
from rft_data.core.words import SandboxKind

AUTO = "auto"
_ORDER = (SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK)
_LIMITS = SandboxLimits(seconds=20.0, memory_mb=256, processes=4)
_MORE = 6
"""Processes that the probe tries to start, each of which ends at once when the probe does."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kind of sandbox that a recipe's setting led to on this machine, and why."""

    kind: SandboxKind
    setting: str
    rejected: tuple[str, ...] = ()
    """Kinds that were tried first, each with the reason why it cannot be used."""

    def __str__(self) -> str:
        """For `rft status`."""
        found = "no sandbox: programs run as this user" if self.kind == SandboxKind.NONE else self.kind
        why = f" ({'; '.join(self.rejected)})" if self.rejected else ""
        return f"{found}, asked for {self.setting}{why}"


def choose(setting: str) -> Choice:
    """The kind of sandbox to use here.

    Args: setting: a kind, or `auto` for the first that holds. `none` is taken without a probe.
    Raises: SandboxError saying of each kind why it cannot be used.
    """
    if setting == SandboxKind.NONE:
        return Choice(SandboxKind.NONE, setting)
    rejected: list[str] = []
    for kind in _ORDER if setting == AUTO else (SandboxKind(setting),):
        reason = probe(kind)
        if not reason:
            return Choice(kind, setting, tuple(rejected))
        rejected.append(f"{kind}: {reason}")
    raise SandboxError(
        f"the recipe runs programs that a model wrote, and no sandbox holds on this machine "
        f"(explorer.sandbox: {setting}). {' | '.join(rejected)} Install bubblewrap, or sandlock "
        "(pip install 'rft-data[sandbox]') on Linux 6.12 or newer; or write `sandbox: none` to run them with "
        "your own rights."
    )


def probe(kind: SandboxKind) -> str:
    """Reason against using a kind of sandbox here; empty if it holds."""
    try:
        with _outside() as (things, udp), Sandbox(kind, _LIMITS) as sandbox:
            ran = sandbox.run(Program("python", _probe_source(things)))
            sent = _has_received(udp)
    except RftError as err:
        return str(err)
    try:
        escapes = [*json.loads(ran.stdout)["could"], *(["send by UDP"] if sent else [])]
    except (ValueError, TypeError, KeyError):
        return f"a probe did not run to its end in it ({ran.end}): {ran.stderr.strip()[-300:]}"
    return f"a program in it could {', '.join(escapes)}." if escapes else ""


@dataclass(frozen=True, slots=True)
class _Things:
    """A file, a folder and sockets outside the sandbox that the probe tries to reach."""

    file: str
    folder: str
    tcp: int
    unix: str
    abstract: str
    pid: int


@contextmanager
def _outside() -> Iterator[tuple[_Things, socket.socket]]:
    """A file that everybody may read and write, and sockets that listen; the UDP socket itself too."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rft-probe-")))
        folder.chmod(0o777)
        file = folder / "secret"
        file.write_text("secret")
        file.chmod(0o666)
        tcp = stack.enter_context(socket.socket())
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(tcp.getsockname())
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        unix.listen()
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(b"\0" + f"rft-probe-{os.getpid()}-{folder.name}".encode())
        abstract.listen()
        name = abstract.getsockname()[1:].decode()
        port = tcp.getsockname()[1]
        yield _Things(str(file), str(folder), port, str(folder / "socket"), name, os.getpid()), udp


def _has_received(udp: socket.socket) -> bool:
    udp.setblocking(False)
    try:
        return bool(udp.recv(1))
    except BlockingIOError:
        return False


def _probe_source(things: _Things) -> str:
    return _SOURCE.replace("THINGS", repr([getattr(things, name) for name in _Things.__slots__])).replace(
        "MORE", str(_MORE)
    )


_SOURCE = '''
import json, os, resource, socket
file, folder, tcp, unix, abstract, pid = THINGS
could = []

def attempt(what, act):
    try:
        answer = act()
    except (OSError, ValueError, MemoryError, AttributeError):
        return
    if answer is not False:
        could.append(what)

def attempt_unseen(act):
    """Try what only the other end can judge: a network of its own takes what is sent to nobody."""
    try:
        act()
    except OSError:
        pass

def talk(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as end:
        end.settimeout(2)
        end.connect(address)
        if kind == socket.SOCK_DGRAM:
            end.send(b"x")

def fork_more():
    """Start processes until one is refused; all end with this one's pipe."""
    reading, writing = os.pipe()
    started = 0
    try:
        for _ in range(MORE):
            if os.fork() == 0:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0)
            started += 1
    except OSError:
        return False
    finally:
        os.close(writing)
        for _ in range(started):
            os.wait()
    return started >= MORE

def raise_limit():
    resource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))

attempt("read a file outside", lambda: open(file).read())
attempt("write a file outside", lambda: open(file, "a").write("x"))
attempt("make a file outside", lambda: open(folder + "/made", "w"))
attempt("delete a file outside", lambda: os.unlink(folder + "/socket"))
attempt("change the mode of a file outside", lambda: os.chmod(file, 0o600))
attempt("connect by TCP", lambda: talk(socket.AF_INET, ("127.0.0.1", tcp)))
attempt_unseen(lambda: talk(socket.AF_INET, ("127.0.0.1", tcp), socket.SOCK_DGRAM))  # the other end looks
attempt("connect to a unix socket", lambda: talk(socket.AF_UNIX, unix))
attempt("connect to an abstract socket", lambda: talk(socket.AF_UNIX, chr(0) + abstract))
attempt("signal its parent", lambda: os.getppid() > 1 and os.kill(os.getppid(), 0))
attempt("signal other processes", lambda: os.kill(pid, 0) if os.getpid() > 16 else False)
attempt("see other processes", lambda: len([name for name in os.listdir("/proc") if name.isdigit()]) > 9)
attempt("read an environment", lambda: open("/proc/%d/environ" % os.getppid(), "rb").read())
attempt("see variables", lambda: bool(set(os.environ) - {"PATH", "LANG", "HOME", "PWD", "LC_CTYPE"}))
attempt("start more processes than allowed", fork_more)
attempt("raise its limits", raise_limit)
attempt("write files of any size", lambda: resource.getrlimit(resource.RLIMIT_FSIZE)[1] < 0)
open("own", "w").write("x")
print(json.dumps({"could": could}), flush=True)
'''
