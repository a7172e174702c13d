"""An S3-compatible store for tests: moto's server, in a process of its own.

moto is not imported here: Flask's proxies, once loaded, break vLLM's look over all modules.
"""

import importlib.util
import json
import socket
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.ports import free_port
from tests.waiting import wait_for


@pytest.fixture(scope="session")
def store_server() -> Iterator[str]:
    """The server's address."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto, of the extra dev")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: process.poll() is not None or listens(port))
        assert process.poll() is None
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(store_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, as `s3://NAME`, that the environment has the credentials of."""
    variables = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": store_server,
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    asked = urllib.request.Request(f"{store_server}/{name}", method="PUT")  # noqa: S310
    with urllib.request.urlopen(asked) as answer:  # noqa: S310 - the server above
        assert answer.status == 200
    return f"s3://{name}"


@contextmanager
def refused(server: str) -> Iterator[None]:
    """The server takes nobody's credentials for a `with` block, as when they have expired."""
    requests_without = _asked_for_credentials(server, "0")
    try:
        yield
    finally:
        _asked_for_credentials(server, requests_without)


def _asked_for_credentials(server: str, after: str) -> str:
    """Have the server look at credentials after so many requests; returns the number of before."""
    plain = {"Content-Type": "text/plain"}
    asked = urllib.request.Request(f"{server}/moto-api/reset-auth", after.encode(), plain)  # noqa: S310
    with urllib.request.urlopen(asked) as answer:  # noqa: S310 - the server above
        return str(json.loads(answer.read())["PREVIOUS_INITIAL_NO_AUTH_ACTION_COUNT"])


def listens(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Way:
    """A way to a server that can be broken off."""

    def __init__(self, server: str) -> None:
        """Args: server: its address, as `http://HOST:PORT`."""
        host, _, port = server.removeprefix("http://").partition(":")
        self._there = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.breaks = 0
        """So many connections are still to be broken off."""
        threading.Thread(target=self._accept, daemon=True).start()

    def break_off(self, times: int) -> None:
        """End all connections, and the next so many as soon as they are made."""
        self.breaks = times
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections, and take no more."""
        self._listening.close()
        self.break_off(0)

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                near, _ = self._listening.accept()
                if self.breaks:
                    self.breaks -= 1
                    near.close()
                    continue
                far = socket.create_connection(self._there)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=ends, daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def way(bucket: str, store_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """The way on which clients made from now on reach the store of `bucket`."""
    way = Way(store_server)
    monkeypatch.setenv("AWS_ENDPOINT", way.address)
    yield way
    way.close()
