"""Ports for servers that cannot choose one themselves."""

import itertools
import os
import socket

_FIRST, _EACH, _WORKERS = 20_000, 500, 20
"""Below the range (from 32768) out of which Linux gives ports to every connection and to port 0: one of that
range may be given away before the server has started."""
_numbers = itertools.count(os.getpid())


def free_port() -> int:
    """A port that nothing listens on and that no other worker of this test run is given."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS
    for number in itertools.islice(_numbers, _EACH):
        port = _FIRST + worker * _EACH + number % _EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port is free")
