"""The explorers of a run: who plays what, on which policy version, and what became of those that died.

It chooses neither tasks nor versions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rft_data.core.errors import EngineError, ParityError, RoleDiedError, StalledError
from rft_data.core.protocols import Role
from rft_data.core.rows import Assignment, Played, Task, WeightRef
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)

_MAY_RESTART = (RoleDiedError, StalledError, EngineError, ParityError)


@dataclass(eq=False)
class Seat:
    """One explorer."""

    role: Role
    version: int = -1
    """The version it has proved to serve; -1 while it serves none."""
    playing: dict[Future[list[Played]], list[Assignment]] = field(default_factory=dict)
    loading: tuple[Future[float], WeightRef] | None = None
    starting: Future[None] | None = None
    """Its next life, while that begins."""
    deaths: int = 0
    """How often it was started again since it last brought something home."""
    parity: float = 0.0
    """Largest logprob difference (nats) at its last load."""
    busy_s: float = 0.0
    """Seconds with a call under way, since the last look."""
    since: float | None = None
    asked: Future[dict[str, float]] | None = None
    """Its numbers, on their way."""

    @property
    def load(self) -> int:
        """Groups it is playing."""
        return sum(map(len, self.playing.values()))

    def watch(self) -> None:
        """Keep the clock of `busy_s`: runs while a call is under way."""
        now = time.monotonic()
        if self.since is not None:
            self.busy_s += now - self.since
        self.since = now if self.playing or self.loading else None


class Fleet:
    """Explorers that play groups and follow the published weights."""

    def __init__(
        self,
        roles: Sequence[Role],
        versions: VersionRegistry,
        *,
        whole_rounds: bool,
        deadline_s: float,
        max_restarts: int = 3,
    ) -> None:
        """Take over running explorer roles.

        Args:
            versions: keeps the folders of the weights that are being loaded.
            whole_rounds: an explorer gets its share of a round in one call (so that what is batched
                together does not depend on timing), instead of one call per group.
            deadline_s: longest a call may take.
            max_restarts: of one explorer that brings nothing home between them, before the run ends.
        """
        self.seats = [Seat(role) for role in roles]
        self._versions = versions
        self._whole_rounds = whole_rounds
        self._deadline_s = deadline_s
        self._max_restarts = max_restarts
        self._published: WeightRef | None = None
        self._lost: list[Assignment] = []
        """What explorers that died were playing."""

    @property
    def parity(self) -> float:
        """Largest logprob difference (nats), engine against trainer, at the last loads."""
        return max((seat.parity for seat in self.seats), default=0.0)

    @property
    def playing(self) -> int:
        """Groups under way."""
        return sum(seat.load for seat in self.seats)

    def futures(self) -> list[Future[Any]]:
        """What to wait for: the end of any of these may be something to collect."""
        starting = [seat.starting for seat in self.seats if seat.starting]
        loading = [seat.loading[0] for seat in self.seats if seat.loading]
        playing = [future for seat in self.seats for future in seat.playing]
        late = [future for future in playing if not future.done()]
        return starting + loading + (late if self._whole_rounds and late else playing)

    def publish(self, ref: WeightRef) -> None:
        """Have every explorer load these weights; one that is loading older ones goes on to them after."""
        self._published = ref
        for seat in self.seats:
            self._follow(seat)

    def versions(self) -> list[int]:
        """The versions that are served, newest first.

        With whole rounds none while one is loading or starting: who gets a round must not depend on who is
        quicker.
        """
        if self._whole_rounds and any(seat.loading or seat.starting for seat in self.seats):
            return []
        return sorted({seat.version for seat in self.seats if seat.version >= 0}, reverse=True)

    def play(self, assignments: Sequence[Assignment], version: int) -> None:
        """Hand groups to the explorers that serve `version`, the least loaded first."""
        seats = [seat for seat in self.seats if seat.version == version]
        shares: dict[Seat, list[Assignment]] = {seat: [] for seat in seats}
        for assignment in assignments:
            shares[min(seats, key=lambda seat: seat.load + len(shares[seat]))].append(assignment)
        for seat, share in shares.items():
            calls = [share] if self._whole_rounds else [[one] for one in share]
            for call in filter(None, calls):
                future = seat.role.call(
                    "explore", list[Played], deadline_s=self._deadline_s, assignments=call
                )
                seat.playing[future] = call
            seat.watch()

    def collect(self) -> tuple[list[Played], list[Assignment]]:
        """What came home, and what was lost with an explorer that died (and is started again).

        Raises: what an explorer raised, if starting it again cannot help or was done `max_restarts` times.
        """
        played: list[Played] = []
        for seat in self.seats:
            self._started(seat)
            if seat.loading is not None and seat.loading[0].done():
                self._loaded(seat, *seat.loading)
            for future in self._finished(seat):
                if future not in seat.playing:
                    continue  # lost with a call that was collected before it
                try:
                    played += future.result()
                    del seat.playing[future]
                    seat.deaths = 0
                except _MAY_RESTART as err:
                    self._restart(seat, err)
            seat.watch()
        lost, self._lost = self._lost, []
        return sorted(played, key=lambda one: one.ticket.ordinal), lost

    def _finished(self, seat: Seat) -> list[Future[list[Played]]]:
        """Calls that may be collected; those of a whole round only together."""
        if self._whole_rounds and not all(f.done() for seat in self.seats for f in seat.playing):
            return []
        return [future for future in seat.playing if future.done()]

    def settle(self) -> None:
        """Wait until every explorer serves what was published last.

        Raises: what loading raised, as `collect` does.
        """
        for seat in self.seats:
            while seat.starting is not None or seat.loading is not None:
                if seat.starting is not None:
                    seat.starting.exception()  # waits; `_started` looks at it
                    self._started(seat)
                elif seat.loading is not None:
                    seat.loading[0].exception()
                    self._loaded(seat, *seat.loading)

    def evaluate(self, tasks: Sequence[Task], label: str, samples: int) -> list[int]:
        """Play each task, spread over the explorers; returns the stored rows' numbers.

        Args: samples: 1 is greedy; more are sampled as groups are.
        Raises: what an explorer raises.
        """
        asked = {"label": label, "samples": samples}
        calls = [
            seat.role.call("evaluate", list[int], deadline_s=self._deadline_s, tasks=list(share), **asked)
            for seat, share in zip(self.seats, _shares(tasks, len(self.seats)), strict=True)
            if share
        ]
        return [seq for call in calls for seq in call.result()]

    def busy_seconds(self) -> dict[str, float]:
        """Seconds each explorer had a call under way, since the last look."""
        found = {}
        for seat in self.seats:
            seat.watch()
            found[seat.role.name], seat.busy_s = seat.busy_s, 0.0
        return found

    def metrics(self) -> dict[str, dict[str, float]]:
        """What each explorer counted between the last two calls; never waits, so one may be missing."""
        found = {}
        for seat in self.seats:
            if seat.asked is not None and seat.asked.done():
                asked, seat.asked = seat.asked, None
                if asked.exception() is None:  # else its death shows where it plays
                    found[seat.role.name] = asked.result()
            if seat.asked is None and seat.starting is None:
                seat.asked = seat.role.call("metrics", dict[str, float], deadline_s=self._deadline_s)
        return found

    def _follow(self, seat: Seat) -> None:
        """Start loading what was published last; while it starts or loads, this is looked at after it."""
        ref = self._published
        if seat.starting is None and seat.loading is None and ref is not None:
            self._versions.hold(ref.version)
            seat.loading = seat.role.call("load_weights", float, deadline_s=self._deadline_s, ref=ref), ref
            seat.watch()

    def _loaded(self, seat: Seat, load: Future[float], ref: WeightRef) -> None:
        seat.loading = None
        self._versions.let_go(ref.version)
        try:
            seat.parity = load.result()
        except _MAY_RESTART as err:
            self._restart(seat, err)
            return
        seat.version = ref.version
        if ref != self._published:
            self._follow(seat)

    def _restart(self, seat: Seat, why: Exception) -> None:
        if seat.deaths >= self._max_restarts:
            raise why
        seat.deaths += 1
        log.warning("%s is started again (%d groups lost): %s", seat.role.name, seat.load, why)
        self._lost += [assignment for call in seat.playing.values() for assignment in call]
        seat.playing.clear()
        if seat.loading is not None:
            self._versions.let_go(seat.loading[1].version)
        seat.loading, seat.version, seat.asked = None, -1, None
        seat.starting = seat.role.restart()

    def _started(self, seat: Seat) -> None:
        """Look whether its next life has begun; then it follows the published weights."""
        if seat.starting is None or not seat.starting.done():
            return
        started, seat.starting = seat.starting, None
        try:
            started.result()
        except _MAY_RESTART as err:
            self._restart(seat, err)
            return
        self._follow(seat)


def _shares(tasks: Sequence[Task], n: int) -> Iterator[Sequence[Task]]:
    size = -(-len(tasks) // n)
    return (tasks[place * size : (place + 1) * size] for place in range(n))
