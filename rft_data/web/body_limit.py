"""Refuses requests with a large body, or with one of unknown length. The page's own forms are small."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MOST_BYTES = 1 << 20


class Bounded:
    """Refuses requests with larger bodies before these are read; ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on a request, or refuse it with 413."""
        if scope["type"] == "http" and scope["method"] == "POST":
            length = dict(scope["headers"]).get(b"content-length", b"")
            if not length.isdigit() or int(length) > MOST_BYTES:
                words = f"A form has at most {MOST_BYTES} bytes, and says how many; send a shorter one."
                await PlainTextResponse(words, 413)(scope, receive, send)
                return
        await self._app(scope, receive, send)
