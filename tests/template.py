"""Children of the tests are forked from a process that has imported the libraries: the template.

A role of a run spends 4 to 10 s of processor time on imports, and the tests start hundreds of them. What is
in `FORKED`, and code that begins with FORK, begins in it with its modules loaded, and is otherwise what it
would be: a child of the process that started it, with the environment, folder, streams and descriptors that
it was given. Beside each such child a copy of the template waits for the children that it starts itself. All
others start as ever, and so do all with RFT_TEST_FRESH=1, on other systems than Linux, and where an import
would read another environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
_SUBREAPER = 36
HEAD = struct.Struct("<i")
PROCESS = Path(__file__).with_name("template_process.py")
"""The process itself."""
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
            socket.send_fds(self._socket, [HEAD.pack(len(content))], descriptors)
            self._socket.sendall(content)
            return int(HEAD.unpack(exactly(self._socket, HEAD.size))[0])
        finally:
            _adopt(False)


def _begun() -> Template:
    """A template of this process's own."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", str(PROCESS), str(theirs.fileno()), str(os.getpid())],
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


def is_copy(end: socket.socket) -> None:
    """From now on children of this process, which was forked, come from a copy of its template."""
    global _template
    _template = Template(end)
    subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]


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
