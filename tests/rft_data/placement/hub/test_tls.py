"""A hub that other machines reach: what it says is encrypted, and clients talk to the right one only."""

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingExtraError, RecipeError, StalledError, TokenError
from rft_data.placement.hub import HubClient, HubServer, tls
from rft_data.placement.hub.address import is_loopback, parse_address
from tests.rft_data.conftest import make_experience

SECRET = "a-secret-that-nobody-guesses"  # noqa: S105


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """It listens at every address of this machine, loopback among them."""
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer, host="0.0.0.0", token=SECRET) as hub:  # noqa: S104
        yield hub


def here(hub: HubServer) -> str:
    return str(replace(parse_address(hub.address), host="127.0.0.1"))


@pytest.mark.slow
def test_rows_go_through_tls_and_come_back(hub: HubServer) -> None:
    with HubClient(here(hub), hub.token) as client:
        assert client.append([make_experience(n) for n in range(20)]).stored == 20
        assert client.read("experiences", ["seq"]).num_rows == len(client) == 20


@pytest.mark.slow
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])  # noqa: S104
def test_nothing_of_token_or_rows_can_be_read_on_the_way(tmp_path: Path, host: str) -> None:
    row = make_experience(1)
    with (
        Buffer(tmp_path / "buffer") as buffer,
        HubServer(buffer, host=host, token=SECRET) as hub,
        _Wire(parse_address(here(hub)).port) as wire,
        HubClient(here(hub).replace(str(wire.to), str(wire.port)), hub.token) as client,
    ):
        client.append([row])
        client.read("experiences")
    secrets = [SECRET.encode(), row.experience_id.encode(), b"completion_text"]
    assert [secret in wire.seen for secret in secrets] == [host == "127.0.0.1"] * 3


@pytest.mark.slow
def test_certificate_follows_from_the_secret(hub: HubServer) -> None:
    digest = parse_address(hub.address).digest
    assert tls.certificate(SECRET).digest == digest
    assert tls.certificate("another secret").digest != digest


@pytest.mark.slow
def test_client_tells_a_hub_with_another_certificate_nothing(hub: HubServer) -> None:
    address = here(hub)[:-64] + tls.certificate("another").digest
    with HubClient(address, hub.token) as client, pytest.raises(TokenError, match="another certificate"):
        client.counts()


@pytest.mark.slow
def test_client_that_wants_tls_refuses_a_hub_without(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer) as plain:
        address = f"{plain.address}/{tls.certificate(SECRET).digest}"
        with HubClient(address, plain.token) as client, pytest.raises(TokenError, match="speaks TLS"):
            client.counts()


@pytest.mark.slow
def test_hub_answers_nothing_to_a_client_without_tls(hub: HubServer) -> None:
    with HubClient(here(hub)[:-65], hub.token) as client, pytest.raises(StalledError):
        client.counts(deadline_s=0.5)


@pytest.mark.parametrize("host", ["10.77.0.1", "0.0.0.0", "trainer.example"])  # noqa: S104
def test_address_of_another_machine_needs_a_digest(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(RecipeError, match="nothing is sent there without TLS; give the whole address"):
        HubClient(f"hub://{host}:4000", "token")


@pytest.mark.parametrize("address", ["hub://:1", "hub://a", "http://a:1", "hub://127.0.0.1:1/abc", "a:1"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(RecipeError, match="no address of a hub; wanted is hub://HOST:PORT/DIGEST"):
        parse_address(address)


def test_hub_of_this_machine_alone_needs_no_digest() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"))
    assert parse_address("hub://127.0.0.1:4000").digest is None


def test_hub_for_other_machines_names_the_extra_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with Buffer(tmp_path / "buffer") as buffer, pytest.raises(MissingExtraError, match=r"\[tls\]"):
        HubServer(buffer, host="0.0.0.0")  # noqa: S104


@pytest.mark.slow
def test_closing_hub_answers_what_has_arrived_over_tls(
    hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with HubClient(here(hub), hub.token) as client:
        client.append([make_experience(1)])
        hub.close()
        hub.start()
    assert not [record for record in caplog.records if record.name.startswith("rft_data.placement.hub")]


class _Wire:
    """A proxy that passes bytes on and keeps them."""

    def __init__(self, to: int) -> None:
        self.seen = b""
        self.to = to

    def __enter__(self) -> "_Wire":
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        while True:
            try:
                part = source.recv(65536)
                self.seen += part
                target.sendall(part)
            except OSError:
                return
            if not part:
                target.close()
                return
