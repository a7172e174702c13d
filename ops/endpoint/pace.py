"""Keeps calls below so many in any minute, and their tokens below so many."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

_MINUTE_S = 60.0


@dataclass(slots=True)
class Booking:
    """Tokens that count in the minute after `at`."""

    at: float
    tokens: int
    """An estimate until the caller sets what the call took."""


class Pace:
    """Gives each call the first moment at which it fits, in the order of asking, and waits for it."""

    def __init__(self, requests: int | None, tokens: int | None, *, window_s: float = _MINUTE_S) -> None:
        """`requests`, `tokens`: most in any `window_s`; None: no bound."""
        self._requests = requests
        self._tokens = tokens
        self._window_s = window_s
        self._tries: deque[float] = deque(maxlen=requests)
        self._bookings: deque[Booking] = deque()

    async def next_try(self) -> None:
        """Wait until one more request may be made."""
        if self._requests is None:
            return
        at = time.monotonic()
        if len(self._tries) == self._requests:
            at = max(at, self._tries[0] + self._window_s)
        self._tries.append(at)
        await _sleep_until(at)

    async def book(self, tokens: int) -> Booking:
        """Wait until a call of so many tokens may be made. One that is larger than the bound goes alone."""
        booking = Booking(time.monotonic(), tokens)
        if self._tokens is None:
            return booking
        while self._bookings and self._bookings[0].at <= booking.at - self._window_s:
            self._bookings.popleft()
        if self._bookings:
            booking.at = max(booking.at, self._bookings[-1].at)
        fits = self._tokens - tokens
        for one in reversed(self._bookings):
            fits -= one.tokens
            if fits < 0:
                booking.at = max(booking.at, one.at + self._window_s)
                break
        self._bookings.append(booking)
        await _sleep_until(booking.at)
        return booking


async def _sleep_until(at: float) -> None:
    if (wait := at - time.monotonic()) > 0:
        await asyncio.sleep(wait)
