"""One explorer of a fleet: what it plays, loads and serves. Decides nothing."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from rft_data.core.groups import Assignment, Played
from rft_data.core.roles import Role
from rft_data.core.rows import WeightRef


@dataclass(frozen=True, slots=True)
class Loading:
    """Weights that an explorer was asked to load, while that is under way."""

    future: Future[float]
    """The call; its result is the parity."""
    ref: WeightRef
    since: float
    """`time.monotonic()` when it was asked."""


@dataclass(eq=False)
class Member:
    """One explorer of the fleet."""

    role: Role
    version: int = -1
    """The version it proved to serve; -1 while it serves none."""
    playing: dict[Future[list[Played]], list[Assignment]] = field(default_factory=dict)
    loading: Loading | None = None
    loaded_s: float = 0.0
    """Seconds that its last load took: transfer, proof, and the wait for what it was playing."""
    starting: Future[None] | None = None
    """Its restart, while that is under way."""
    deaths: int = 0
    """How often it was started again since it last returned a group or its part of an evaluation."""
    parity: float = 0.0
    """Largest logprob difference (nats) at its last load."""
    busy_s: float = 0.0
    """Seconds with a call under way, since `take_busy_s` was last called."""
    since: float | None = None
    """`time.monotonic()` at the last update of `busy_s`; None while no call is under way."""
    asked: Future[dict[str, float]] | None = None
    """The call for its metrics, while that is under way."""

    extra: bool = False
    """Whether it joined beyond the least number of explorers, and may leave again."""
    leaves_at: float | None = None
    """`time.monotonic()` until which it may finish what it plays, before it leaves; None: it stays."""
    died: bool = False
    """Whether it leaves because it died."""
    ending: Future[None] | None = None
    """The end of its process when it leaves, while that is under way."""

    @property
    def stays(self) -> bool:
        """Whether it is given groups and weights."""
        return self.leaves_at is None

    @property
    def load(self) -> int:
        """Groups it is playing."""
        return sum(map(len, self.playing.values()))

    def follow(self, ref: WeightRef, deadline_s: float) -> None:
        """Have it load these weights."""
        future = self.role.call("load_weights", float, deadline_s=deadline_s, ref=ref)
        self.loading = Loading(future, ref, time.monotonic())
        self.watch()

    def take_busy_s(self) -> float:
        """Seconds with a call under way, since this was last read."""
        self.watch()
        taken, self.busy_s = self.busy_s, 0.0
        return taken

    def watch(self) -> None:
        """Update `busy_s`, which counts while a call is under way."""
        now = time.monotonic()
        if self.since is not None:
            self.busy_s += now - self.since
        self.since = now if self.playing or self.loading else None
