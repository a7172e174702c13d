"""A trajectory of a served run, from the moment that it waits for a client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic

from explorers.conversations.rollout_app import RolloutApp
from explorers.workflows.rollout_server import Access

_LOOK_S, _SOON_S = 1.0, 0.05
"""Longest and shortest time between two looks whether a trajectory was left alone."""
_STORED_S = 10.0
"""Longest wait for the rows of a trajectory that a client has ended to be stored."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Visit:
    """A trajectory that waits for a client, or that one has opened."""

    access: Access
    idle_s: float
    """Without a request for so long, it is over."""
    group: str = ""
    """Id of the group of the rollout that waits."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    used: float = 0.0
    """`monotonic()` when a request last began or ended."""
    held: int = 0
    """Tokens that it is counted with in all that trajectories hold."""
    abandoned: bool = False
    experience_id: str | None = None
    """Id of the row that has its reward; None while it is not known, and where there is none."""
    is_stored: bool = False
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def app(self) -> RolloutApp:
        """The model that its client speaks to."""
        return self.access.app

    @property
    def name(self) -> str:
        """Its id."""
        return self.access.name

    def begin(self) -> None:
        """A client has opened it."""
        self.used = monotonic()
        self.opened.set()

    async def until_over(self) -> bool:
        """Wait for a client to open and end it; False when it made no request for too long."""
        await self.opened.wait()
        while not self.over.is_set():
            left = self.used + self.idle_s - monotonic()
            if left <= 0 and not self.app.answering:
                return False
            try:
                await asyncio.wait_for(self.over.wait(), min(max(left, _SOON_S), _LOOK_S))
            except TimeoutError:
                continue
        return True

    def becomes(self, experience_id: str) -> None:
        """Say which row will have its reward."""
        self.experience_id = experience_id
        self._known.set()

    def settle(self, *, stored: bool) -> None:
        """Its rows are stored; or they will not be."""
        self.is_stored = stored
        if not stored:
            self.experience_id = None
        self._known.set()
        self._settled.set()

    async def settled(self, *, alone: bool) -> None:
        """Wait until its rows are stored, or will not be, or it is known which they are: not for long.

        Args: alone: whether no other trajectory of its group is open, so that the group is stored now.
        """
        try:
            async with asyncio.timeout(_STORED_S):
                await (self._settled if alone else self._known).wait()
        except TimeoutError:
            pass  # its rewards or the buffer are slow
