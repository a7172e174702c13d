"""The explorers of a run: what each plays, on which policy version, and how a dead one is started again.

The tasks and the versions are chosen elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from rft_data.core.arms import Arm
from rft_data.core.errors import EngineError, ParityError, RoleDiedError, StalledError
from rft_data.core.groups import Assignment, Played
from rft_data.core.roles import Role, WeightSender
from rft_data.core.rows import WeightRef
from rft_data.loop.arms import Arms
from rft_data.loop.endpoint_costs import EndpointCosts
from rft_data.loop.extras import Extras
from rft_data.loop.member import Loading, Member
from rft_data.loop.served_weights import ServedWeights
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)

MAY_RESTART = (RoleDiedError, StalledError, EngineError, ParityError)
"""Errors of a call after which its explorer is started again."""


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
        sender: WeightSender | None = None,
        extras: Extras | None = None,
        arms: Arms | None = None,
    ) -> None:
        """Manage explorer roles that are already running.

        Args:
            versions: keeps the folders of the weights that are being loaded.
            whole_rounds: an explorer gets its share of a round in one call (so that what is batched
                together does not depend on timing), instead of one call per group.
            deadline_s: longest a call may take.
            max_restarts: how often one explorer is started again without returning a group, before the run
                ends.
            sender: is told before explorers load a version; None: they read the published folder.
            extras: explorers that join and leave while the run goes on; None: there are none.
            arms: pins one of the explorers to older weights; None: all follow the newest.
        """
        self.arms = arms
        self._extras = extras
        self.members = [Member(role) for role in roles]
        self._weights = ServedWeights(versions, deadline_s, sender, arms)
        self._whole_rounds = whole_rounds
        self.deadline_s = deadline_s
        self._max_restarts = max_restarts
        self.costs = EndpointCosts()
        """Of all explorers' calls, as far as `metrics` was told."""
        self._lost: list[Assignment] = []
        """Assignments of explorers that died."""
        self._handed_back: list[Assignment] = []
        """Assignments of explorers that left."""

    @property
    def parity(self) -> float:
        """Largest logprob difference (nats), engine against trainer, at the last loads."""
        return max((member.parity for member in self.members), default=0.0)

    def publication(self) -> dict[str, float]:
        """Bytes of the last published weights, and the seconds of the slowest explorer that loaded them."""
        return self._weights.publication(self.members)

    @property
    def playing(self) -> int:
        """Groups under way."""
        return sum(member.load for member in self.members)

    def futures(self) -> list[Future[Any]]:
        """Calls to wait for: when any of them ends, `collect` may return something."""
        ending = [member.ending for member in self.members if member.ending]
        starting = [member.starting for member in self.members if member.starting]
        loading = [member.loading.future for member in self.members if member.loading and not member.ending]
        playing = [future for member in self.members if not member.ending for future in member.playing]
        late = [future for future in playing if not future.done()] if self._whole_rounds else []
        return starting + loading + ending + (late or playing)

    def publish(self, ref: WeightRef) -> None:
        """Have every explorer load these weights, or older ones where it is pinned to such.

        One that is still loading others loads these next.
        """
        self._weights.publish(ref, self.members)

    def versions(self) -> list[int]:
        """The versions that are served, newest first.

        With whole rounds the list is empty while any explorer is loading, starting or playing: neither which
        explorer gets a round, nor how large the round is, may depend on which is quicker.
        """
        if self._whole_rounds and any(m.loading or m.starting or m.playing for m in self.members):
            return []
        return sorted({m.version for m in self.members if m.version >= 0 and m.stays}, reverse=True)

    def turns(self) -> Iterator[tuple[int, Arm | None]]:
        """Versions that may get groups, in order; with arms, version and arm of each next group."""
        if self.arms is None:
            yield from ((version, None) for version in self.versions())
            return
        while (turn := self.arms.turn(self.members)) is not None:
            yield turn

    def play(self, assignments: Sequence[Assignment], version: int, arm: Arm | None = None) -> None:
        """Hand groups to the explorers (of the arm) that serve `version`, the least loaded first."""
        members = [member for member in self.members if member.version == version and member.stays]
        if self.arms is not None and arm is not None:
            members = [member for member in members if self.arms.arm(member) is arm]
            self.arms.gave(arm, assignments)
        shares: dict[Member, list[Assignment]] = {member: [] for member in members}
        for assignment in assignments:
            shares[min(members, key=lambda member: member.load + len(shares[member]))].append(assignment)
        for member, share in shares.items():
            calls = [share] if self._whole_rounds else [[one] for one in share]
            for call in filter(None, calls):
                future = member.role.call(
                    "explore", list[Played], deadline_s=self.deadline_s, assignments=call
                )
                member.playing[future] = call
            member.watch()

    def collect(self) -> tuple[list[Played], list[Assignment]]:
        """Groups that were returned, and assignments that were lost with an explorer.

        An explorer that died is started again.
        Raises: what an explorer raised, if a restart cannot help or was tried `max_restarts` times.
        """
        played: list[Played] = []
        if self._extras is not None:
            self._extras.look(self)
        for member in self.members:
            if member.ending is not None:
                continue
            self._started(member)
            if member.loading is not None and member.loading.future.done():
                self._loaded(member, member.loading)
            for future in self._finished(member):
                if future not in member.playing:
                    continue  # lost with another call, which was collected before it
                try:
                    played += future.result()
                    del member.playing[future]
                    member.deaths = 0
                except MAY_RESTART as err:
                    self.restart(member, err)
            member.watch()
        lost, self._lost = self._lost, []
        return sorted(played, key=lambda one: one.ticket.ordinal), lost

    def handed_back(self) -> list[Assignment]:
        """Assignments that explorers had not finished when they left, since the last call."""
        taken, self._handed_back = self._handed_back, []
        return taken

    def join(self, role: Role) -> None:
        """Take in an explorer that runs; it is given groups once it serves the newest weights, proved."""
        member = Member(role, extra=True)
        self.members.append(member)
        self._weights.follow([member])

    def gone(self, member: Member) -> None:
        """Forget an explorer whose process has ended, and hand back what it was playing."""
        self._handed_back += [assignment for call in member.playing.values() for assignment in call]
        self._weights.end_load(member)
        self.members.remove(member)

    def restart(self, member: Member, why: Exception) -> None:
        """Start an explorer again that died or does not answer; what it was playing is lost.

        Raises: `why`, if that was tried `max_restarts` times since it last returned something.
        """
        if member.deaths >= self._max_restarts and not member.extra:
            raise why
        member.deaths += 1
        what = "is gone" if member.extra else "is started again"
        log.warning("%s %s (%d groups lost): %s", member.role.name, what, member.load, why)
        self._lost += [assignment for call in member.playing.values() for assignment in call]
        member.playing.clear()
        self._weights.end_load(member)
        member.version = -1
        member.asked = None
        if member.extra:
            member.leaves_at, member.died = time.monotonic(), True
        else:
            member.starting = member.role.restart()

    def _finished(self, member: Member) -> list[Future[list[Played]]]:
        """Calls that may be collected; those of a whole round only together."""
        if self._whole_rounds and not all(f.done() for member in self.members for f in member.playing):
            return []
        return [future for future in member.playing if future.done()]

    def settle(self) -> None:
        """Wait until every explorer serves the weights that it should serve.

        Raises: what loading raised, as `collect` does.
        """
        for member in self.members:
            while member.starting is not None or member.loading is not None:
                if member.starting is not None:
                    member.starting.exception()  # waits; `_started` looks at it
                    self._started(member)
                elif member.loading is not None:
                    member.loading.future.exception()
                    self._loaded(member, member.loading)

    def busy_seconds(self) -> dict[str, float]:
        """Seconds each explorer had a call under way, since this was last read."""
        return {member.role.name: member.take_busy_s() for member in self.members}

    def metrics(self) -> dict[str, dict[str, float]]:
        """Counters of each explorer between the last two calls; never waits, so one may be missing."""
        found = {}
        for member in self.members:
            if member.asked is not None and member.asked.done():
                asked, member.asked = member.asked, None
                if asked.exception() is None:  # else its death shows in the calls that play
                    found[member.role.name] = asked.result()
                    self.costs.add(asked.result())
            if member.asked is None and member.starting is None and member.stays:
                member.asked = member.role.call("metrics", dict[str, float], deadline_s=self.deadline_s)
        return found

    def all_costs(self) -> dict[str, float]:
        """The sums of `costs` with what was counted since `metrics` was called; waits for the explorers."""
        asked = [member.asked for member in self.members if member.asked is not None]
        for member in self.members:
            member.asked = None
            asked.append(member.role.call("metrics", dict[str, float], deadline_s=self.deadline_s))
        for one in asked:
            if one.exception() is None:  # what an explorer that died counted last is not known
                self.costs.add(one.result())
        return self.costs.summary()

    def _loaded(self, member: Member, loading: Loading) -> None:
        self._weights.end_load(member)
        try:
            member.parity = loading.future.result()
        except MAY_RESTART as err:
            self.restart(member, err)
            return
        member.version = loading.ref.version
        member.loaded_s = time.monotonic() - loading.since
        self._weights.follow([member])

    def _started(self, member: Member) -> None:
        """If its restart is done, have it load the published weights."""
        if member.starting is None or not member.starting.done():
            return
        started, member.starting = member.starting, None
        try:
            started.result()
        except MAY_RESTART as err:
            self.restart(member, err)
            return
        self._weights.follow([member])
