"""Shares of a hub for each client: memory and rows, so that one client cannot use up all of it.

A call takes its share before its data is received and gives it back when it is answered.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rft_data.core.errors import StalledError
from rft_data.placement.hub import wire
from rft_data.placement.hub.access import Holder

CLIENTS_AT_LARGEST = 4
"""Clients whose calls may have the largest size at the same time; more of them wait."""


class Shares:
    """Bytes and rows of the calls under way."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._changed = threading.Condition()
        self._rows: Counter[Holder] = Counter()
        self._bytes: Counter[Holder] = Counter()

    @contextmanager
    def taken(self, client: Holder, rows: int, size: int, wait_s: float) -> Iterator[None]:
        """Hold a share for a `with` block; it may be as large as the largest call.

        Raises: StalledError when there was no room for `wait_s`.
        """
        end = time.monotonic() + wait_s
        with self._changed:
            while not self._fits(client, rows, size):
                if not self._changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    raise StalledError(self._why(client, wait_s))
            self._rows[client] += rows
            self._bytes[client] += size
        try:
            yield
        finally:
            with self._changed:
                self._rows[client] -= rows
                self._bytes[client] -= size
                self._changed.notify_all()

    def _fits(self, client: Holder, rows: int, size: int) -> bool:
        return (
            self._rows[client] + rows <= wire.MAX_REQUEST_ROWS
            and self._bytes[client] + size <= wire.MAX_REQUEST_BYTES
            and self._bytes.total() + size <= CLIENTS_AT_LARGEST * wire.MAX_REQUEST_BYTES
        )

    def _why(self, client: Holder, wait_s: float) -> str:
        mine, all_ = self._bytes[client], self._bytes.total()
        return (
            f"calls of this client ({client.role} '{client.name}') had {self._rows[client]} rows and {mine} "
            f"bytes under way at the hub for {wait_s:g} s, those of all clients {all_} bytes; a client may "
            f"have {wire.MAX_REQUEST_ROWS} rows and {wire.MAX_REQUEST_BYTES} bytes. Nothing of this call is "
            "stored: send it again."
        )
