"""Explorers beyond the least number of a run: they join and leave while it goes on.

One joins when it is wanted and there is room; it leaves when fewer are wanted, when its node is to be taken
away, or when it died. What it had not finished is handed back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from rft_data.core.errors import RftError
from rft_data.core.roles import ElasticPlacement, Role, RoleSpec
from rft_data.loop.member import Member

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 1.0
"""Between two looks at what is wanted and what there is room for."""
LEAVE_S = 20.0
"""How long an explorer that leaves may finish what it plays; clouds take a node 30 s after the notice."""
AGAIN_S = 10.0
"""After its death, or a start that failed, an explorer is started again no earlier."""


class ExtrasFleet(Protocol):
    """The methods of an explorer fleet that this module calls."""

    members: list[Member]

    def join(self, role: Role) -> None:
        """Take in an explorer that runs."""
        ...

    def gone(self, member: Member) -> None:
        """Forget an explorer whose process has ended."""
        ...


class Extras:
    """Lets explorers join a fleet and leave it."""

    def __init__(
        self, placement: ElasticPlacement, specs: Sequence[RoleSpec], wanted: Callable[[], int]
    ) -> None:
        """Nothing is started before the first `look`.

        Args:
            specs: those that may join, the first ones first.
            wanted: how many of them are wanted now.
        """
        self._placement = placement
        self._specs = specs
        self._wanted = wanted
        self._joining: dict[str, Future[Role]] = {}
        self._asked: set[str] = set()
        """Explorers for which the placement was asked for room."""
        self._not_before: dict[str, float] = {}
        self._look_at = 0.0

    def look(self, fleet: ExtrasFleet) -> None:
        """Take in who has started, let go who has ended; at times, look who is to join or to leave."""
        self._take_in(fleet)
        self._let_go(fleet)
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        wanted = {spec.name for spec in self._specs[: max(0, self._wanted())]}
        self._notice(fleet, wanted, now)
        self._start(fleet, wanted, now)

    def _take_in(self, fleet: ExtrasFleet) -> None:
        for name in [name for name, started in self._joining.items() if started.done()]:
            started = self._joining.pop(name)
            try:
                fleet.join(started.result())
            except RftError as err:
                log.warning("%s cannot join: %s", name, err)
                self._free(name)
                self._not_before[name] = time.monotonic() + AGAIN_S
            else:
                log.info("%s joins the run", name)

    def _let_go(self, fleet: ExtrasFleet) -> None:
        now = time.monotonic()
        for member in [one for one in fleet.members if not one.stays]:
            name = member.role.name
            if member.ending is not None:
                if member.ending.done():
                    if error := member.ending.exception():
                        log.warning("%s did not end as asked: %s", name, error)
                    self._free(name)
                    fleet.gone(member)
            elif not member.playing or now >= (member.leaves_at or now):
                if member.died:
                    self._not_before[name] = now + AGAIN_S
                member.ending = _in_thread(f"end-{name}", member.role.close)

    def _notice(self, fleet: ExtrasFleet, wanted: set[str], now: float) -> None:
        """Mark those that are to leave."""
        extras = [member for member in fleet.members if member.extra and member.stays]
        drained = self._placement.drained() if extras else ()
        for member in extras:
            name = member.role.name
            if name in wanted and name not in drained:
                continue
            why = "its node is to be taken away" if name in drained else "fewer explorers are wanted"
            log.info("%s leaves the run, %s (%d groups under way)", name, why, member.load)
            member.leaves_at = now + LEAVE_S

    def _start(self, fleet: ExtrasFleet, wanted: set[str], now: float) -> None:
        """Start those that are wanted and for which there is room."""
        here = {member.role.name for member in fleet.members} | self._joining.keys()
        for spec in self._specs:
            name = spec.name
            if name in here:
                continue
            if name not in wanted:
                self._free(name)
            elif now >= self._not_before.get(name, 0.0):
                self._asked.add(name)
                if self._placement.reserve(spec):
                    self._joining[name] = _started(self._placement, spec)

    def _free(self, name: str) -> None:
        if name in self._asked:
            self._asked.discard(name)
            self._placement.release(name)


def _started(placement: ElasticPlacement, spec: RoleSpec) -> Future[Role]:
    return _in_thread(f"join-{spec.name}", lambda: placement.start(spec))


def _in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """The result of `work` in a thread of its own, which does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as err:  # noqa: BLE001 - whoever waits must learn of every end
            future.set_exception(err)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
