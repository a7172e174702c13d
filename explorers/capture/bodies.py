"""Bodies of requests: how long each may be, how long it may take, and how much all of them may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from explorers.capture.asgi import Receive, Scope, read_body

_BODY_S = 120.0
"""Longest wait for a body: without it, a client that was cut off keeps its trajectory open for ever."""


class BodyRefused(Exception):
    """A body is not taken; `status` and `wait_s` are those of the answer."""

    def __init__(self, status: int, text: str, wait_s: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.wait_s = wait_s


class Bodies:
    """Room for the bodies of all requests under way; its methods are called in one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.taken_bytes = 0
        """Of bodies that are awaited or whose requests are being answered."""

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive, most: int) -> AsyncIterator[bytes]:
        """The body of a request, which has its room for the length of the block.

        Args: most: bytes that it may have.
        Raises: BodyRefused.
        """
        room = announced(scope, most)
        if self.taken_bytes + room > self._most_bytes and self.taken_bytes:
            raise BodyRefused(429, "too many long requests are under way; come back later.", 1)
        self.taken_bytes += room
        try:
            raw = await self._whole(receive, most)
            self.taken_bytes += len(raw) - room
            room = len(raw)
            yield raw
        finally:
            self.taken_bytes -= room

    async def _whole(self, receive: Receive, most: int) -> bytes:
        try:
            async with asyncio.timeout(_BODY_S):
                raw = await read_body(receive, most)
        except TimeoutError as err:
            raise BodyRefused(408, f"the request's body did not come in {_BODY_S:g} s.") from err
        if raw is None:
            raise BodyRefused(413, f"the request is longer than {most} bytes.")
        return raw


def announced(scope: Scope, most: int) -> int:
    """How long a body will be at most: as its header says, or as long as it may be."""
    told = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"")
    return min(int(told), most) if told.isdigit() else most
