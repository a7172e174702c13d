"""A trajectory of a served run, from the moment that it waits for a client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic

from explorers.conversations.rollout_app import RolloutApp
from explorers.workflows.rollout_server import Access

_SETTLED_S = 10.0
"""Longest wait for the rows of a trajectory that a client has ended."""


@dataclass(slots=True, eq=False)
class Visit:
    """A trajectory that waits for a client, or that one has opened."""

    access: Access
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
    """Id of the row that has its reward; None for a guest's, and while it is not settled."""
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

    def settle(self, experience_id: str | None) -> None:
        """Say which row will have its reward; None: there is none."""
        self.experience_id = experience_id
        self._settled.set()

    async def settled(self) -> str | None:
        """Which row will have its reward, once that is known; None when there is none."""
        try:
            async with asyncio.timeout(_SETTLED_S):
                await self._settled.wait()
        except TimeoutError:
            pass  # its rollout was cancelled meanwhile: there are no rows
        return self.experience_id
