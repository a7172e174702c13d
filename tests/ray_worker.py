"""The program that a Ray node of the tests starts for each worker, in place of Ray's own `setup_worker.py`.

It asks `ray_workers.py` for a process with the libraries loaded that becomes the worker, and lasts as long as
that one does. It imports next to nothing itself.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys

WORKERS = "RFT_TEST_RAY_WORKERS"
"""Environment variable of a node: the socket of the process that its workers are forked from."""
HEAD = struct.Struct("<i")
OWN_WAY = -1
"""Instead of an exit code: no process was forked."""
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="


def main() -> None:
    """Start the worker that the arguments describe, with the variables and the folder of its job."""
    given = [word for word in sys.argv[1:] if not word.startswith((_CONTEXT, _LANGUAGE))]
    contexts = [word.removeprefix(_CONTEXT) for word in sys.argv[1:] if word.startswith(_CONTEXT)]
    context = json.loads((contexts or ["{}"])[0] or "{}")
    for name, value in (context.get("env_vars") or {}).items():
        os.environ[name] = os.path.expandvars(value)
    if prefix := context.get("command_prefix"):
        code = f'{" ".join(prefix)} exec "$@"'
        os.execvp("bash", ["bash", "-c", code, "-", sys.executable, __file__, *given])  # noqa: S606
    code = _forked(given)
    if code == OWN_WAY:
        os.execv(sys.executable, [sys.executable, *given])  # noqa: S606
    sys.exit(code if code >= 0 else 128 - code)


def _forked(command: list[str]) -> int:
    """The exit code of the worker, or OWN_WAY."""
    script, *arguments = command
    order = {
        "module": "",
        "arguments": arguments,
        "script": script,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "first": [os.path.dirname(script)],
        "places": [0, 1, 2],
        "own_session": False,
        "group": 0,  # Ray kills the group of a worker that has ended
    }
    content = json.dumps(order).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ[WORKERS])
        socket.send_fds(line, [HEAD.pack(len(content))], [0, 1, 2])
        line.sendall(content)
        return int(HEAD.unpack(line.recv(HEAD.size) or HEAD.pack(1))[0])


if __name__ == "__main__":
    main()
