"""Addresses of hubs: `hub://HOST:PORT` on this machine, `hub://HOST:PORT/DIGEST` where TLS is spoken.

The digest is that of the hub's certificate (SHA-256, hexadecimal). It is no secret; it must come from where
the run's token comes from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from rft_data.core.errors import RecipeError

SCHEME = "hub://"
_FORM = re.compile(r"hub://(?P<host>[^/]+):(?P<port>\d{1,5})(?:/(?P<digest>[0-9a-f]{64}))?")


@dataclass(frozen=True, slots=True)
class Place:
    """Address at which a hub listens."""

    host: str
    port: int
    digest: str | None
    """Digest of the hub's certificate; None: it speaks without TLS, on loopback."""

    def __str__(self) -> str:
        """The address."""
        return f"{SCHEME}{self.host}:{self.port}{'' if self.digest is None else f'/{self.digest}'}"


def parse_address(address: str) -> Place:
    """Address that a client connects to.

    Raises: RecipeError for an address that is none, and for one of another machine without a digest.
    """
    found = _FORM.fullmatch(address)
    if found is None:
        raise RecipeError(
            f"'{address}' is no address of a hub; wanted is hub://HOST:PORT/DIGEST as the run printed it "
            "(hub://HOST:PORT on its own machine)."
        )
    place = Place(found["host"], int(found["port"]), found["digest"])
    if place.digest is None and not is_loopback(place.host):
        raise RecipeError(
            f"'{address}' names another machine and has no digest of the hub's certificate, and nothing is "
            "sent there without TLS; give the whole address that the run printed: hub://HOST:PORT/DIGEST."
        )
    return place


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a hub that listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
