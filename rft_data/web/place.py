"""Address at which the page listens, and the one under which people reach it."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rft_data.core.errors import RecipeError

HOME = "127.0.0.1"
_LOOPBACK = (HOME, "localhost", "::1")
_ALL = ("", "0.0.0.0", "::")  # noqa: S104 - refused


@dataclass(frozen=True, slots=True)
class Place:
    """An address of this machine: for this machine alone, with TLS, or for a proxy that speaks TLS."""

    host: str = HOME
    """The name or address to listen on."""
    port: int = 0
    """0: a free one."""
    cert: Path | None = None
    """PEM file with the certificate, and its chain."""
    key: Path | None = None
    """PEM file with the certificate's key."""
    proxy: str = ""
    """`https://NAME[:PORT]` of a proxy that people use and that passes `Host` on; empty: there is none."""

    def check(self) -> None:
        """Raises: RecipeError for a page that would cross a network in clear, and for contradictions."""
        if (self.cert is None) != (self.key is None):
            raise RecipeError("--tls-cert and --tls-key belong together; give both files.")
        if self.cert is not None and self.key is not None:
            self._check_tls(self.cert, self.key)
        if self.proxy:
            self._check_proxy()
        elif self.host in _ALL:
            raise RecipeError(
                f"--host {self.host} names no machine; give the name or address by which people reach it."
            )
        elif self.cert is None and self.host not in _LOOPBACK:
            raise RecipeError(
                f"--host {self.host} is reached by other machines, and the page would cross the network in "
                "clear; give --tls-cert and --tls-key, or --behind-proxy https://NAME for a proxy with TLS. "
                "From one other machine: ssh -L 8000:127.0.0.1:8000 and --port 8000."
            )

    def _check_proxy(self) -> None:
        found = urlsplit(self.proxy)
        if found.scheme != "https" or not found.hostname or found.path.strip("/") or found.query:
            raise RecipeError(
                f"--behind-proxy is '{self.proxy}'; wanted https://NAME or https://NAME:PORT, the address "
                "that people open, without a path."
            )
        if self.cert is not None:
            raise RecipeError("--behind-proxy and --tls-cert exclude each other: the proxy speaks TLS.")

    @property
    def secure(self) -> bool:
        """Whether people reach it over TLS."""
        return bool(self.proxy) or self.cert is not None

    def names(self) -> frozenset[str]:
        """Values of `Host` that browsers may send, without a port."""
        if self.proxy:
            return frozenset((_bracketed(urlsplit(self.proxy).hostname or ""),))
        if self.host in (HOME, "localhost"):
            return frozenset((HOME, "localhost"))
        return frozenset((_bracketed(self.host.lower()),))

    def url(self, port: int) -> str:
        """The address that people open, without a slash at the end; `port`: the one that is listened on."""
        if self.proxy:
            return self.proxy.rstrip("/")
        return f"{'https' if self.secure else 'http'}://{_bracketed(self.host)}:{port}"

    def listen(self) -> socket.socket:
        """A socket that listens.

        Raises: RecipeError when the port is taken, or the host is not of this machine.
        """
        try:
            family, *_, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family)
        except OSError as err:
            raise RecipeError(
                f"the page cannot listen on {_bracketed(self.host)}:{self.port} ({err.strerror or err}); "
                "give a --host of this machine and a --port that is free, or leave them out."
            ) from err

    def _check_tls(self, cert: Path, key: Path) -> None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, password="")
        except OSError as err:
            raise RecipeError(
                f"--tls-cert {cert} with --tls-key {key} cannot be used ({err}); wanted a certificate and "
                "its key without a password, both as PEM."
            ) from err


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
