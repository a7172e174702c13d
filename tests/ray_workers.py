"""The process out of which workers of the tests' Ray nodes are forked: it has the libraries loaded.

Ray starts a Python process for each actor, which imports Ray twice and then what its role needs: 12 s of
processor time for a trainer. A node of `forked_workers` starts `ray_worker.py` for it instead.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests import template, template_process
from tests.ray_worker import HEAD, OWN_WAY, WORKERS

_SCRIPT = Path(__file__).with_name("ray_worker.py")
NODE_CODE = (
    f"import os; import ray._private.ray_constants as c; {WORKERS!r} in os.environ and "
    f"setattr(c, 'SETUP_WORKER_FILENAME', {str(_SCRIPT)!r}); "
)
"""Begins the code of a process that starts a node in the environment `workers_environment`."""


@functools.cache
def workers_environment() -> dict[str, str]:
    """The variables of a node whose workers are forked; none where no children of the tests are.

    The process that they are forked from starts with the first call, and ends with this one.
    """
    if not (environment := template.loading_environment()):
        return {}
    folder = Path(tempfile.mkdtemp(prefix="rft-", dir="/tmp"))  # sockets need a short path
    place = str(folder / "workers")
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {__name__} import listen; listen({place!r})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    atexit.register(_end, process, folder)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError("what the workers of Ray are forked out of has ended")
    return {WORKERS: place}


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.communicate()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def forked_workers() -> Iterator[None]:
    """A node that this process starts within the block forks its workers."""
    environment = workers_environment()
    constants = importlib.import_module("ray._private.ray_constants")
    script = str(_SCRIPT) if environment else constants.SETUP_WORKER_FILENAME
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(constants, "SETUP_WORKER_FILENAME", script),
    ):
        yield


# --- in the process that workers are forked from -------------------------------------------------


def listen(place: str) -> None:
    """Fork a worker for each connection, until the standard input ends.

    Each imports Ray itself, which reads its variables while it is imported. So nothing here may have done so
    before; the tests' template has, with Data-Juicer's operators.
    """
    template.begins_here()
    template_process.load()
    if "ray" in sys.modules:
        raise RuntimeError("a module that is loaded for Ray's workers imports Ray")
    template_process.keep()
    guards: list[int] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        os.write(1, b"listens\n")
        while 0 not in select.select([server, 0], [], [])[0]:
            line, _ = server.accept()
            with line:
                guards = [one for one in guards if not os.waitpid(one, os.WNOHANG)[0]]
                if not (guard := os.fork()):
                    order = _worker(line)
                    break
                guards.append(guard)
        else:
            return
    template_process.end_with(template_process.run(order))


def _worker(line: socket.socket) -> dict[str, Any]:
    """Returns the order in the worker alone; its parent ends here, with the worker."""
    head, descriptors, _, _ = socket.recv_fds(line, HEAD.size, 3)
    order: dict[str, Any] = json.loads(template.exactly(line, HEAD.unpack(head)[0]))
    if not template.suits(order["environment"]):
        line.sendall(HEAD.pack(OWN_WAY))
        os._exit(0)
    if not (worker := os.fork()):
        template_process.become(order, descriptors)
        return order
    for one in descriptors:
        os.close(one)
    ended = os.pidfd_open(worker)
    if line in select.select([line, ended], [], [])[0]:  # who asked for it was killed
        os.kill(worker, signal.SIGKILL)
        line.close()
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if line.fileno() >= 0:
        line.sendall(HEAD.pack(status))
    os._exit(0)
