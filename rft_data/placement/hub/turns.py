"""Sends bulky answers in turns, so that small calls do not wait behind many copies of a file.

All connections share the cores of the hub, and what TLS encrypts keeps one of them busy.
"""

from __future__ import annotations

import os
import threading
import time

import pyarrow as pa

from rft_data.placement.hub.frames import Channel, Kind


class Turns:
    """Lets few threads send at the same moment; one that waits for its client gives its turn to another."""

    def __init__(self, at_once: int | None = None) -> None:
        """`at_once`: how many; None: half as many as there are cores."""
        self._free = threading.BoundedSemaphore(at_once or max(1, (os.cpu_count() or 1) // 2))

    def send(self, channel: Channel, kind: Kind, content: pa.Buffer, within_s: float) -> None:
        """Send one frame. Raises: OSError (TimeoutError after `within_s` of waiting for the client)."""
        channel.begin(kind, content.size, within_s)
        rest = memoryview(content).cast("B")
        while rest:
            with self._free:
                rest = channel.send_now(rest)
            if rest:
                began = time.monotonic()
                channel.wait_for_room(within_s)
                within_s -= time.monotonic() - began
