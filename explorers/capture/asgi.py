"""The types of an ASGI application, and the key and the body of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

Event: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = Event
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key that a request carries, in OpenAI's or Anthropic's header; empty without one."""
    found = {name.lower(): value for name, value in headers}
    scheme, _, token = found.get(b"authorization", b"").partition(b" ")
    key = token.strip() if scheme.lower() == b"bearer" else found.get(b"x-api-key", b"")
    return key.decode("latin-1")


async def read_body(receive: Receive, most: int) -> bytes | None:
    """The body of a request; None when it is longer than `most` bytes, or its client has gone."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        more = message.get("more_body", False)
    return b"".join(parts)


def replayed(raw: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, and then what the client does next."""
    read = False

    async def replay() -> Event:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return replay
