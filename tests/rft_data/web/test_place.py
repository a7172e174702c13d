"""The page leaves this machine over TLS only, its own or a proxy's."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.web.app import make_app
from rft_data.web.guard import Guard
from rft_data.web.place import Place
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience

OTHER = "127.0.0.2"
"""An address of this machine that the page does not take for one."""
X509 = pytest.importorskip("cryptography.x509")


@pytest.fixture(scope="module")
def buffer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place") / "buffer"
    with Buffer(folder) as buffer:
        buffer.append([make_experience(0)])
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate and key for OTHER."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = X509.Name([X509.NameAttribute(X509.NameOID.COMMON_NAME, OTHER)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        X509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(X509.SubjectAlternativeName([X509.IPAddress(ipaddress.ip_address(OTHER))]), False)
        .add_extension(X509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    folder, pem = tmp_path_factory.mktemp("tls"), serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    form, no_password = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, no_password))
    locked = serialization.BestAvailableEncryption(b"secret")
    (folder / "locked.pem").write_bytes(key.private_bytes(pem, form, locked))
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.slow
def test_another_machine_reaches_it_over_tls_and_by_its_name_alone(
    buffer: Path, files: tuple[Path, Path]
) -> None:
    cert, key = files
    command = [sys.executable, "-m", "rft_data.cli.app", "view", str(buffer), "--host", OTHER]
    command += ["--tls-cert", str(cert), "--tls-key", str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            link = httpx.URL(server.stdout.readline().strip())
            assert (link.scheme, link.host) == ("https", OTHER)
            with httpx.Client(verify=ssl.create_default_context(cafile=cert), timeout=60) as client:
                opened = client.get(link)
                assert opened.status_code == 303
                assert "; Secure" in opened.headers["set-cookie"]
                home = link.copy_with(query=None)
                assert client.get(home).status_code == 200
                assert client.get(home, headers={"host": "127.0.0.1"}).status_code == 421
            with httpx.Client(timeout=60) as plain, pytest.raises(httpx.RemoteProtocolError):
                plain.get(home.copy_with(scheme="http"))
        finally:
            server.terminate()


@pytest.mark.slow
def test_behind_a_proxy_it_has_the_proxys_name(buffer: Path) -> None:
    place = Place(proxy="https://runs.example.org/")
    place.check()
    assert place.url(4000) == "https://runs.example.org"
    app = make_app(Subjects([str(buffer)]), None, "f")
    guard = Guard(app, token="t", hosts=place.names(), secure=place.secure)  # noqa: S106 - of the test
    page = TestClient(guard, base_url="https://runs.example.org", follow_redirects=False)
    assert "; Secure" in page.get("/?token=t").headers["set-cookie"]
    assert page.get("/").status_code == 200
    assert page.get("/", headers={"host": "127.0.0.1:4000"}).status_code == 421


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(OTHER), "would cross the network in clear; give --tls-cert and --tls-key, or --behind-proxy"),
        (Place("0.0.0.0"), "--host 0.0.0.0 names no machine"),  # noqa: S104 - refused
        (Place(OTHER, cert=Path("c")), "belong together"),
        (Place(proxy="http://runs.example.org"), "wanted https://NAME"),
        (Place(proxy="https://runs.example.org/page"), "without a path"),
        (Place(proxy="runs.example.org"), "wanted https://NAME"),
        (Place(OTHER, cert=Path("/no"), key=Path("/no")), "--tls-cert /no with --tls-key /no cannot be used"),
    ],
)
def test_what_would_be_open_or_makes_no_sense_is_refused(place: Place, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        place.check()


def test_files_that_do_not_serve_are_refused_without_a_question(files: tuple[Path, Path]) -> None:
    cert, key = files
    Place(OTHER, cert=cert, key=key).check()
    for wrong in (cert, key.with_name("locked.pem")):
        with pytest.raises(RecipeError, match="a certificate and its key without a password"):
            Place(OTHER, cert=cert, key=wrong).check()
    with pytest.raises(RecipeError, match="exclude each other"):
        Place(cert=cert, key=key, proxy="https://runs.example.org").check()


def test_what_is_taken_or_elsewhere_is_one_clear_error() -> None:
    with Place().listen() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RecipeError, match=rf"cannot listen on 127.0.0.1:{port} .*a --port that is free"):
            Place(port=port).listen()
    with pytest.raises(RecipeError, match=r"cannot listen on 192.0.2.1:0 .*a --host of this machine"):
        Place("192.0.2.1").listen()


@pytest.mark.slow
def test_addresses_of_version_6_are_read_and_written_as_browsers_write_them(buffer: Path) -> None:
    names = Place("::1").names()
    page = TestClient(Guard(make_app(Subjects([str(buffer)]), None, "f"), token="t", hosts=names))  # noqa: S106
    for host, status in (("[::1]", 401), ("[::1]:80", 401), ("[::2]", 421), ("::1", 421)):
        assert page.get("/", headers={"host": host}).status_code == status, host
    assert (Place("::1").names(), Place("::1").url(80)) == ({"[::1]"}, "http://[::1]:80")
    assert Place(proxy="https://[2001:db8::1]:443").names() == {"[2001:db8::1]"}
    assert Place("localhost").names() == Place().names() == {"127.0.0.1", "localhost"}
