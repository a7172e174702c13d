"""Bodies of requests of clients with keys: bounded in all, and for each key."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from explorers.capture.asgi import Receive, Scope
from explorers.capture.bodies import Bodies, BodyRefused, announced
from explorers.conversations.model_app import MAX_BODY

_MOST_BYTES, _KEY_BYTES = 16 * MAX_BODY, 4 * MAX_BODY
_KEY_REQUESTS = 256
_BUSY = "too many requests of this trajectory are under way; come back later."


class KeyBodies:
    """Room for the bodies under way, of which one key has a quarter at most; used in one event loop."""

    def __init__(self) -> None:
        self._bodies = Bodies(_MOST_BYTES)
        self._taken: Counter[str] = Counter()
        """Bytes by trajectory."""
        self._requests: Counter[str] = Counter()

    @asynccontextmanager
    async def read(self, name: str, scope: Scope, receive: Receive, most: int) -> AsyncIterator[bytes]:
        """The body of a request of the trajectory `name`, which has its room for the length of the block.

        Args: most: bytes that it may have.
        Raises: BodyRefused.
        """
        room = announced(scope, most)
        if self._requests[name] >= _KEY_REQUESTS or self._taken[name] + room > _KEY_BYTES:
            raise BodyRefused(429, _BUSY, 1)
        self._requests[name] += 1
        self._taken[name] += room
        try:
            async with self._bodies.read(scope, receive, most) as raw:
                self._taken[name] += len(raw) - room
                room = len(raw)
                yield raw
        finally:
            self._requests[name] -= 1
            self._taken[name] -= room
            if not self._requests[name]:
                del self._requests[name], self._taken[name]
