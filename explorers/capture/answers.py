"""Refusals in the form that the clients of a route expect."""

from __future__ import annotations

import json
from http import HTTPStatus

from explorers.capture.asgi import Send

_LONGEST = 200
"""Most characters of the name of a field, which a client chooses."""


async def refuse(
    send: Send, route: str, status: int, text: str, *, param: str | None = None, wait_s: int | None = None
) -> None:
    """Answer with an error; `param`: the field that it is about, `wait_s`: when to come back."""
    kind = "".join(HTTPStatus(status).phrase.split()) + "Error"
    param = param and param[:_LONGEST]
    error: dict[str, object] = {"message": text, "type": kind, "param": param, "code": status}
    whole = {"type": "error", "error": error} if route == "/v1/messages" else {"error": error}
    body = json.dumps(whole).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if wait_s is not None:
        headers.append((b"retry-after", str(wait_s).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
