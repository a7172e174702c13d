"""The round that every loop repeats: start what may start, wait, collect what finished.

It is the same for every placement and mode. `OnlineLoop` and `ExploreLoop` say what may start and when a run
is over. Where nothing overlaps, it explores and trains in turns.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from concurrent.futures import FIRST_COMPLETED, Future, wait

from rft_data.loop.exploring import Exploring

LOOK_S = 1.0
"""Longest wait, in seconds, before stop requests and feedback are looked at again."""


class Loop(ABC):
    """Repeats until it is finished or a stop is requested."""

    exploring: Exploring

    def repeat(self) -> None:
        """Go on until `finished`.

        Raises: StalledError or EngineError if nothing can go on; Stopped when asked to; what a role raised.
        """
        while not self.finished() or self.under_way():
            stopping = self.stopping()
            if not stopping and not self.finished():
                self.start()
            if under_way := self.under_way():
                self.wait(under_way)
                self.collect()
            elif stopping:
                self.stop()
            elif self.exploring.waiting:
                time.sleep(LOOK_S)
                self.collect()
            else:
                self.nothing_under_way()

    def drain(self) -> None:
        """Start nothing new; collect until nothing is under way."""
        while under_way := self.under_way():
            self.wait(under_way)
            self.collect()

    def wait(self, under_way: list[Future[object]]) -> None:
        """Wait until a call ends, or there is something else to do."""
        wait(under_way, max(0.0, min(LOOK_S, self.exploring.gathered_in_s)), FIRST_COMPLETED)

    def under_way(self) -> list[Future[object]]:
        """Every call that has not been collected."""
        return self.exploring.fleet.futures()

    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing more is to be started."""

    @abstractmethod
    def stopping(self) -> bool:
        """Whether a stop was requested."""

    @abstractmethod
    def start(self) -> None:
        """Start whatever may start now."""

    @abstractmethod
    def collect(self) -> None:
        """Collect whatever has finished."""

    @abstractmethod
    def stop(self) -> None:
        """Write a checkpoint. Raises: Stopped, always."""

    @abstractmethod
    def nothing_under_way(self) -> None:
        """Go on, or raise: nothing could be started, nothing is under way, and the run is not finished."""
