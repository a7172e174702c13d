"""The template of the tests' children (see template.py): it imports, then forks a child for each order."""

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
import sys
import threading
import time
import types
import warnings
from typing import Any

from ops.runtime.hygiene import registry
from rft_data.core import failpoints
from tests import template
from tests.template import HEAD, exactly

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
_DEATH_SIGNAL = 1
_ABOVE = 500
"""Descriptors are moved beyond this one before they get their places."""


def serve(end: socket.socket, owner: int) -> dict[str, Any] | None:
    """Fork a child for each order; returns its order in each child, and None once the owner has gone."""
    while True:
        try:
            head, descriptors, _, _ = socket.recv_fds(end, HEAD.size, 64)
            if not head:
                return None
            order: dict[str, Any] = json.loads(exactly(end, HEAD.unpack(head)[0]))
        except (EOFError, ConnectionError):
            return None
        told, tell = os.pipe()
        if not (between := os.fork()):
            if child := os.fork():
                os.write(tell, HEAD.pack(child))
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
        end.sendall(os.read(told, HEAD.size))
        for one in (told, tell, *descriptors):
            os.close(one)


def _copied(descriptors: list[int]) -> tuple[socket.socket, int] | None:
    """In a copy of this process: where its orders come from, and whose; in this process itself None."""
    ours, theirs = socket.socketpair()
    owner = os.getpid()
    if os.fork():
        theirs.close()
        template.is_copy(socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _ABOVE)))
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
    template.begins_here()
    load()
    registry()
    keep()
    if (order := serve(end, owner)) is not None:
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
