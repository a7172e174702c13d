"""Ports for servers that cannot choose one themselves."""

import itertools
import os
import socket

_FIRST, _ALL = 20_000, 10_000
"""Below the range (from 32768) out of which Linux gives ports to every connection and to port 0: one of that
range may be given away before the server has started."""
_numbers = itertools.count(os.getpid())
_held: list[socket.socket] = []


def free_port() -> int:
    """A port that nothing listens on and that no process of tests is given again while this one lives.

    Its datagram port of the same number, which no server here uses, is bound to say so: two suites on one
    machine would find the same port free before either's server listens.
    """
    for number in itertools.islice(_numbers, _ALL):
        port = _FIRST + number % _ALL
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket() as probe:
            try:
                holder.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                holder.close()
                continue
        _held.append(holder)
        return port
    raise OSError("no port is free")
