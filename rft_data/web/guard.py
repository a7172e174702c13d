"""Access to the page: a token in the link, which becomes a cookie, and headers that forbid scripts."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rft_data.web.people import Person, speaking

PARAMETER = "token"
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer. No script runs on the page, of whatever origin."""


class Guard:
    """Lets requests through that carry the token; ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: frozenset[str],
        people: Mapping[str, Person] | None = None,
        secure: bool = False,
    ) -> None:
        """Let this token through, or those of people.

        Args: token: names the cookie, too. people: by the token of each one's link; None: all who have
            `token` are the same person. hosts: names under which the page is reached; others are refused
            (DNS rebinding). secure: browsers send the cookie over TLS only.
        """
        self._app, self._hosts = app, hosts
        self._people: Mapping[str, Person | None] = {token: None} if people is None else people
        self._cookie = cookie_name(token)
        self._attributes = "HttpOnly; SameSite=Strict; Path=/" + ("; Secure" if secure else "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on, one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get(PARAMETER)
        if _without_port(headers.get("host", "")) not in self._hosts:
            await _say(send, 421, "This page does not answer under that host name.")
        elif given is not None and self._known(given):
            rest = urlencode([(name, value) for name, value in query if name != PARAMETER])
            place = quote(scope["path"]) + (f"?{rest}" if rest else "")
            cookie = f"{self._cookie}={given}; {self._attributes}"
            await _say(send, 303, "", {"location": _local(place), "set-cookie": cookie})
        elif not (known := self._known(cookie_parser(headers.get("cookie", "")).get(self._cookie, ""))):
            await _say(send, 401, "Open the link that 'rft view' printed: it carries the token of this page.")
        else:
            with speaking(self._people[known]):
                await self._app(scope, receive, _with_headers(send))

    def _known(self, given: str) -> str:
        """The token that was given, as it is known here; empty for a wrong one."""
        fitting = [token for token in self._people if hmac.compare_digest(given.encode(), token.encode())]
        return fitting[0] if fitting else ""


def cookie_name(token: str) -> str:
    """The cookie of a page: browsers share cookies between ports, so two pages at once need two names."""
    return f"rft_view_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _without_port(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _local(place: str) -> str:
    """A path of this page: two slashes at the beginning would name another host."""
    return "/" + place.lstrip("/\\")


async def _say(send: Send, status: int, text: str, more: dict[str, str] | None = None) -> None:
    body = text.encode()
    named = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **HEADERS}
    pairs = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in {**named, **(more or {})}.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message["headers"], *own]}
        await send(message)

    return sent
