"""What is said of a store that cannot be reached."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.cli.app import app
from rft_data.core.errors import StalledError
from rft_data.core.objects import Objects
from tests.ports import free_port

WITHOUT = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"


class Empty(http.server.BaseHTTPRequestHandler):
    """A store without a bucket."""

    def do_GET(self) -> None:
        """Says so."""
        self.send_response(404)
        self.send_header("Content-Length", str(len(WITHOUT)))
        self.end_headers()
        self.wfile.write(WITHOUT)

    do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def empty() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


def at(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", f"http://{machine}")


@pytest.mark.slow
def test_a_store_that_is_not_there_is_one_error_of_what_where_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = f"127.0.0.1:{free_port()}"
    at(monkeypatch, machine)
    done = CliRunner().invoke(app, ["buffer", "info", "s3://bucket/buf"])
    assert done.exit_code == StalledError.exit_code
    said = done.stderr.splitlines()[0]
    what = f"error: object s3://bucket/buf cannot be reached: Connection refused ({machine}). See that "
    assert said.startswith(f"{what}the store runs at AWS_ENDPOINT ")
    assert said.endswith("nothing that was stored is lost.")
    with pytest.raises(StalledError, match=rf"reached: error sending request \({machine}\)\. See"):
        Objects("s3://bucket/buf", {"client_max_retries": "0"}).has("a")


@pytest.mark.slow
def test_a_machine_without_a_name_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, "key:secret@no-such-host.invalid:9")
    done = CliRunner().invoke(app, ["buffer", "info", "s3://bucket/buf"])
    said = done.stderr.splitlines()[0]
    assert "cannot be reached: failed to lookup address information: " in said
    assert "(no-such-host.invalid:9). See" in said
    assert "secret@" not in said


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_the_stores_own_word(
    monkeypatch: pytest.MonkeyPatch, empty: int, tmp_path: Path
) -> None:
    at(monkeypatch, f"127.0.0.1:{empty}")
    (tmp_path / "file").write_text("x")
    store = Objects("s3://bucket/buf")
    for call in (lambda: store.put(tmp_path / "file", "a"), store.keys_below):
        with pytest.raises(StalledError, match=rf"reached: NoSuchBucket \(127\.0\.0\.1:{empty}\)\. See"):
            call()
