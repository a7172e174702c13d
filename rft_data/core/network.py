"""This machine on its network: its own address, what listens at another, and whether Ray is encrypted."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import ip_address

_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses of no machine (RFC 5737, RFC 3849): the way to them is the way to most others."""


def own_address(host: str, port: int = 9) -> str:
    """The address of this machine by which `host` can reach it. Raises: OSError where there is no way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        towards.connect((host, port))  # sends nothing
        return str(towards.getsockname()[0])


def reachable_host(host: str) -> str:
    """The address that others connect to, where `host` may be an address that means all of this machine's."""
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            return _main_address()
    return host


def _main_address() -> str:
    for elsewhere in _ELSEWHERE:
        with suppress(OSError):
            return own_address(elsewhere)
    return socket.gethostname()


def check_listens(host: str, port: int, within_s: float) -> None:
    """See that something takes connections there. Raises: OSError."""
    with socket.create_connection((host, port), within_s):
        return


def ray_is_encrypted() -> bool:
    """Whether Ray was told to speak TLS between its nodes."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
