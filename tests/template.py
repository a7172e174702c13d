"""A process that has imported the libraries, out of which children of the tests are forked.

A role of a run spends 4 to 10 s of processor time on imports, and the tests start hundreds of them. What is
in `FORKED`, and code that begins with FORK, begins here with its modules loaded, and is otherwise what it
would be: a child of the process that started it, with the environment, folder, streams and descriptors that
it was given. Beside each such child a copy of the template waits for the children that it starts itself. All
others start as ever, and so do all with RFT_TEST_FRESH=1, on other systems than Linux, and where an import
would read another environment.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.runtime.hygiene import registry
from rft_data.core import failpoints

COMMAND = "rft_data.cli.app"
FORK = "# forked\n"
"""Begins the code of a `python -c` that may find more modules loaded than it imports."""
FORKED = (
    "benchmarks.cluster.hub",
    "benchmarks.cluster.node",
    "benchmarks.crash",
    "benchmarks.ops_children",
    "benchmarks.page",
    "benchmarks.readers",
    "benchmarks.trainer.child",
    "rft_data.core.decoding_trial",
    "rft_data.exchange.formats.arrow_trial",
    "rft_data.placement.child",
    "rft_data.reading.query_worker",
    "rft_data.run.recipe_form_child",
    "rft_data.run.text_vector_child",
    "rft_data.run.trial.child",
    "rft_data.web.readmit_child",
    "rft_data.web.render_child",
    "tests.rft_data.run.killing",
    "tests.trainers.ranks.rank_scenarios",
    "tests.trainers.ranks.torchrun_scenario",
    "trainers.ranks.follower",
    COMMAND,
)
"""Modules that are started with `python -m`; the last of them also as `rft`."""
READS_NONE = ("rft_data.reading.query_worker",)
"""Those of them that import nothing that reads the variables of `READ`, whatever these are."""
PRELOADED = (
    "duckdb",
    "explorers.engines.transformers_engine",
    "explorers.role",
    "lance.file",
    "ops.runtime.pipeline",
    "reasoning_gym",
    "rft_data.placement.host",
    "rft_data.run.start",
    "trainers.offline.offline_role",
    "trainers.role",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
)
READ = (
    *("HF_", "HUGGING", "TRANSFORMERS_", "TOKENIZERS_", "TRL_", "TORCH_", "TORCHDYNAMO", "LD_"),
    *("PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "PYTHONWARNINGS"),
)
"""How names of variables begin that imports read; where one of them differs a command starts as ever."""
_READ_LATER = ("TORCH_NCCL_",)
"""Of these, those that are read when NCCL is used."""
_TEMPLATE = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "2",
}
"""Threads of libraries would be missing in what is forked. The C library reads its variable at its start, for
`rft_data/reading/query.py`."""
_SUBREAPER, _DEATH_SIGNAL = 36, 1
_HEAD = struct.Struct("<i")
_ABOVE = 500
"""Descriptors are moved beyond this one before they get their places."""
_PYTHON = sys.executable
_real: Any = subprocess._fork_exec  # type: ignore[attr-defined]  # what Popen calls once all pipes are made


class Template:
    """The process, as the one that starts children sees it."""

    def __init__(self, end: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.owner = os.getpid()
        self._socket, self._process = end, process

    def fork(self, order: dict[str, Any], descriptors: list[int]) -> int:
        """The id of a new child of this process."""
        content = json.dumps(order).encode()
        _adopt(True)
        try:
            socket.send_fds(self._socket, [_HEAD.pack(len(content))], descriptors)
            self._socket.sendall(content)
            return int(_HEAD.unpack(exactly(self._socket, _HEAD.size))[0])
        finally:
            _adopt(False)


def _begun() -> Template:
    """A template of this process's own."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", __file__, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env=loading_environment(),
            stdin=subprocess.DEVNULL,
        )
    return Template(ours, process)


_template: Template | None = None
_one_at_a_time = threading.Lock()
"""Over the start of the template too: one that adopts must not be told to stop by another thread."""
_environment_here: dict[str, str] = {}
"""That of this process as its first test finds it: what the template was started with."""


def use_template() -> None:
    """From now on children of this process come from a template, which starts with the first of them."""
    if sys.platform == "linux" and sys.version_info[:2] == (3, 11) and not os.environ.get("RFT_TEST_FRESH"):
        _environment_here.update(os.environ)
        subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]


def loading_environment() -> dict[str, str]:
    """Environment in which libraries are loaded for children: that which the first test found, and ours.

    Empty where the children of this process start as ever.
    """
    ours = {**_TEMPLATE, "PYTHONPATH": str(Path(__file__).parents[1])}
    return {**_environment_here, **ours} if _environment_here else {}


def _fork_exec(*given: Any) -> int:
    """What `_posixsubprocess.fork_exec` does; see subprocess.Popen._execute_child for its arguments."""
    command, _, _, kept, folder, environment, *streams = given
    passed = [one for one in kept if one != streams[7]]  # where a failed exec would be told
    words = [os.fsdecode(word) for word in command]
    module, *arguments = _ordered(words)
    env = _environment(environment)
    mine = _template is None or _template.owner == os.getpid()
    if not (mine and module in ("-c", *FORKED) and (module in READS_NONE or suits(env))):
        return int(_real(*given))
    here = os.fsdecode(folder) if folder else str(Path.cwd())
    own_session, group = given[15:17]
    stdin, stdout, stderr = streams[0], streams[3], streams[5]
    sent = [stdin if stdin >= 0 else 0, stdout if stdout >= 0 else 1, stderr if stderr >= 0 else 2, *passed]
    script = words[0] if words[0] != _PYTHON else ""
    order = {
        "module": module,
        "arguments": arguments,
        "script": script,
        "environment": env,
        "folder": here,
        "first": [] if "-P" in words[:3] else [str(Path(words[0]).parent) if script else here],
        "places": [0, 1, 2, *passed],
        "own_session": bool(own_session),
        "group": group,
    }
    with _one_at_a_time:
        return _shared().fork(order, sent)


def _ordered(words: list[str]) -> list[str]:
    """The module that a command runs, and its arguments; an empty name where it runs none."""
    if words[0] == str(Path(_PYTHON).with_name("rft")):
        return [COMMAND, *words[1:]]
    options = [word for word in words[1:4] if word in ("-P", "-u")]
    kind, *rest = words[1 + len(options) :] or [""]
    if words[0] == _PYTHON and kind == "-c" and rest[0].startswith(FORK):
        return ["-c", *rest]
    return rest if words[0] == _PYTHON and kind == "-m" else [""]


def _environment(given: Sequence[bytes] | None) -> dict[str, str]:
    if given is None:
        return dict(os.environ)
    return dict(os.fsdecode(one).split("=", 1) for one in given)  # type: ignore[misc]


def variables_read(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that imports read."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(READ) and not name.startswith(_READ_LATER)
    }


def suits(env: dict[str, str]) -> bool:
    """Whether imports would read the same in this environment as where this process began."""
    return variables_read(env) == variables_read(_environment_here)


def begins_here() -> None:
    """The environment of this process is what imports read."""
    _environment_here.update(os.environ)


def _shared() -> Template:
    global _template
    if _template is None:
        _template = _begun()
    return _template


def _adopt(orphans: bool) -> None:
    """Whether processes whose parent has ended become children of this one."""
    ctypes.CDLL(None).prctl(_SUBREAPER, int(orphans))


def exactly(end: socket.socket, size: int) -> bytes:
    """The next `size` bytes. Raises: EOFError."""
    found = b""
    while len(found) < size:
        part = end.recv(size - len(found))
        if not part:
            raise EOFError("the template of child processes has ended")
        found += part
    return found


# --- in the template -------------------------------------------------------------------------------


def serve(end: socket.socket, owner: int) -> dict[str, Any] | None:
    """Fork a child for each order; returns its order in each child, and None once the owner has gone."""
    while True:
        try:
            head, descriptors, _, _ = socket.recv_fds(end, _HEAD.size, 64)
            if not head:
                return None
            order: dict[str, Any] = json.loads(exactly(end, _HEAD.unpack(head)[0]))
        except (EOFError, ConnectionError):
            return None
        told, tell = os.pipe()
        if not (between := os.fork()):
            if child := os.fork():
                os.write(tell, _HEAD.pack(child))
                os._exit(0)
            end.close()
            while os.getppid() != owner:
                time.sleep(0.001)
            for one in (told, tell):
                os.close(one)
            if (copied := _copied(descriptors)) is not None:
                end, owner = copied
                continue
            become(order, descriptors)
            return order
        os.waitpid(between, 0)
        end.sendall(os.read(told, _HEAD.size))
        for one in (told, tell, *descriptors):
            os.close(one)


def _copied(descriptors: list[int]) -> tuple[socket.socket, int] | None:
    """In a copy of this process: where its orders come from, and whose; in this process itself None."""
    global _template
    ours, theirs = socket.socketpair()
    owner = os.getpid()
    if os.fork():
        theirs.close()
        _template = Template(socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _ABOVE)))
        ours.close()
        return None
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    ours.close()
    for one in descriptors:
        os.close(one)
    return theirs, owner


def become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process, which was forked, the place and the environment of what was ordered."""
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, _ABOVE) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for one, place in zip(high, order["places"], strict=True):
        os.dup2(one, place)
        os.close(one)
    if order["own_session"]:
        os.setsid()
    elif order["group"] >= 0:
        os.setpgid(0, order["group"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    own = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*order["first"], *own, *_BASE]
    importlib.reload(failpoints)  # it reads its variable when it is imported
    own_arguments = order["arguments"][1:] if order["module"] == "-c" else order["arguments"]
    sys.argv[:] = [order["script"] or order["module"], *own_arguments]


def main() -> None:
    """Import, then serve; in a child: be the module that was ordered."""
    end, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    end.set_inheritable(False)
    _environment_here.update(os.environ)
    load()
    registry()
    keep()
    if (order := serve(end, owner)) is not None:
        subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]
        end_with(run(order))


def load() -> None:
    """Import what children need; not Ray, which reads its variables while it is imported."""
    for module in PRELOADED:
        importlib.import_module(module)


def keep() -> None:
    """From here on what is loaded is shared with what is forked.

    Raises: RuntimeError when an import started a thread, which forked children would lack.
    """
    warnings.filterwarnings("ignore", "lance is not fork-safe")  # it is, before it has read or written
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import started a thread, which forked children would lack")
    gc.collect()
    gc.freeze()


def run(order: dict[str, Any]) -> Any:
    """Be the module that was ordered; returns what it gave to `sys.exit`."""
    try:
        if order["module"] == "-c":
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(order["arguments"][0], sys.modules["__main__"].__dict__)  # noqa: S102 - as python -c does
        elif order["script"]:
            runpy.run_path(order["script"], run_name="__main__")
        else:
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    except SystemExit as told:
        return told.code
    return 0


def end_with(code: Any) -> None:
    """End as Python does, without taking each library apart: 2.4 s of processor time, measured."""
    if code is not None and not isinstance(code, int):
        sys.exit(code)  # a text, which Python shows
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # what closes its files when it is given up
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


_BASE = [entry for entry in sys.path if entry not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
if __name__ == "__main__":
    main()
