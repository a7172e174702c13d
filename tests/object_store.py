"""An S3-compatible store for tests: moto's server, in a process of its own.

moto is not imported here: Flask's proxies, once loaded, break vLLM's look over all modules.
"""

import importlib.util
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator

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


def listens(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
