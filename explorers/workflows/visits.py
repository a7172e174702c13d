"""Who uses a run's model from outside: a client opens a trajectory, speaks to the model, and ends it.

POST /trajectories with the run's token gives an id, a base URL and a key, as at `rft serve`;
with the key POST /t/ID/v1/... is OpenAI's API, and POST /trajectories/ID/(reward|end|abandon) ends it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

from explorers.capture.answers import refuse
from explorers.capture.asgi import Receive, Scope, Send, read_body, replayed
from explorers.conversations.look_app import MAX_BODY, answer
from explorers.conversations.rollout_app import RolloutApp
from explorers.workflows.openings import Arrival, Openings, Said
from explorers.workflows.rollout_server import Access, RolloutServer, bearer_key, stated_reward
from rft_data.core.errors import RowError

NAME_HEADER = b"x-rft-trajectory"
"""Header in which a front gives the id of a trajectory that a client opens."""
_MAX_BODY = 1 << 16
_LOOK_S, _SOON_S = 1.0, 0.05
"""Longest and shortest time between two looks whether a trajectory was left alone."""
_REWARD, _END, _ABANDON = _TOLD = ("POST reward", "POST end", "POST abandon")
MOST_HELD = 64 << 20
"""Tokens that the rows of all open trajectories may have; beyond it nothing is sampled or opened."""
_FULL = f"all trajectories hold {MOST_HELD} tokens, as many as may be: end some."
_COUNTS = ("served", "served_guests", "served_abandoned", "served_refused")


@dataclass(slots=True)
class Visit:
    """A trajectory that waits for a client, or that one has opened."""

    access: Access
    app: RolloutApp
    group: str = ""
    """Id of the group of the rollout that waits."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    used: float = 0.0
    """`monotonic()` of the last request."""
    abandoned: bool = False


class Visits:
    """ASGI application. Trajectories of the run wait for clients; one more client is served as a guest."""

    def __init__(
        self,
        token: str,
        guest: Callable[[], Awaitable[RolloutApp | None]],
        *,
        idle_s: float,
        guests: int,
        openings: Openings | None = None,
    ) -> None:
        """Args:
        token: opens trajectories.
        guest: makes the model of a trajectory that no rollout waits for; None while there is no model.
        idle_s: a trajectory without a request for so long is over.
        guests: most of them at a time.
        openings: finds the group of a trajectory by its first request; None: the groups are of whoever comes.
        """
        self.named_by_front = False
        """Whether a front, which alone reaches this application, names trajectories (NAME_HEADER)."""
        self._openings = openings
        self._token = token
        self._guest = guest
        self._idle_s = idle_s
        self._most_guests = guests
        self._rollout_server = RolloutServer()
        self._waiting: deque[Visit] = deque()
        self._visits: dict[str, Visit] = {}
        self._guests: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()

    def take_counts(self) -> dict[str, float]:
        """Trajectories opened (`served`), of guests, given up and refused, since the last call."""
        counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in _COUNTS}

    @asynccontextmanager
    async def waiting(self, app: RolloutApp, group: str = "") -> AsyncIterator[Visit]:
        """A trajectory for the length of the block, which a client may open."""
        async with self._rollout_server.open(app) as access:
            visit = Visit(access, app, group)
            self._waiting.append(visit)
            self._visits[access.name] = visit
            try:
                yield visit
            finally:
                del self._visits[access.name]
                if visit in self._waiting:
                    self._waiting.remove(visit)

    async def until_over(self, visit: Visit) -> bool:
        """Wait for a client to open and end a trajectory; False when it made no request for too long."""
        await visit.opened.wait()
        while not visit.over.is_set():
            left = visit.used + self._idle_s - monotonic()
            if left <= 0 and not visit.app.answering:
                return False
            try:
                await asyncio.wait_for(visit.over.wait(), min(max(left, _SOON_S), _LOOK_S))
            except TimeoutError:
                continue
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        _, prefix, name, rest = [*path.split("/", 3), "", "", ""][:4]
        visit = self._visits.get(name)
        if visit is not None:
            visit.used = monotonic()
        if (method, path) == ("GET", "/health"):
            await answer(send, 200, {"waiting": len(self._waiting), "open": len(self._visits)})
        elif (method, path) == ("POST", "/trajectories"):
            await self._open(scope, receive, send)
        elif prefix == "t" and self._is_full():
            await refuse(send, f"/{rest}", 429, _FULL, wait_s=5)
        elif self._openings is not None and name in self._openings.arrivals:
            await self._begin(
                self._openings, self._openings.arrivals[name], (prefix, rest), scope, receive, send
            )
        elif prefix == "trajectories":
            await self._told(visit, f"{method} {rest}", scope, receive, send)
        else:
            await self._rollout_server(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not hmac.compare_digest(self._token.encode(), bearer_key(scope)):
            await refuse(send, scope["path"], 401, "this token opens no trajectory here.")
            return
        raw = await read_body(receive, _MAX_BODY)
        if raw is None or raw.strip() not in (b"", b"{}"):  # its client has gone, or wants what is not done
            await refuse(send, scope["path"], 400, "a trajectory of a run has the run's task; send no body.")
            return
        if self._is_full():
            await refuse(send, scope["path"], 429, _FULL, wait_s=5)
            return
        access = await self._arrived(self._name(scope))
        if access is None:
            await self._refuse_another(scope, send)
            return
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        base = f"{scope.get('scheme', 'http')}://{host}/t/{access.name}/v1"
        self._counts["served"] += 1
        await answer(send, 201, {"id": access.name, "base_url": base, "key": access.key})

    async def _arrived(self, arrival: Arrival) -> Access | Arrival | None:
        """The access to a new trajectory, or where its first request chooses one; None: too many are open."""
        if self._openings is not None:
            full = len(self._openings.arrivals) >= self._most_guests + len(self._waiting)
            return None if full else self._openings.arrive(arrival, self._idle_s)
        visit = self._waiting.popleft() if self._waiting else await self._let_in()
        if visit is None:
            return None
        self._rename(self._taken(visit), arrival)
        return visit.access

    def _is_full(self) -> bool:
        """Whether all trajectories together hold as many tokens as may be."""
        return sum(visit.app.held for visit in self._visits.values()) >= MOST_HELD

    def _name(self, scope: Scope) -> Arrival:
        """A new trajectory, with the id that the front gave it."""
        given = dict(scope["headers"]).get(NAME_HEADER) if self.named_by_front else None
        return Arrival() if given is None else Arrival(given.decode("latin-1"))

    async def _refuse_another(self, scope: Scope, send: Send) -> None:
        self._counts["served_refused"] += 1
        await refuse(send, scope["path"], 429, "no more trajectories may be open now.", wait_s=1)

    @staticmethod
    def _taken(visit: Visit) -> Visit:
        visit.used = monotonic()
        visit.opened.set()
        return visit

    async def _begin(
        self,
        openings: Openings,
        arrival: Arrival,
        place: tuple[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """The first request of a trajectory finds its rollout, and is answered by it."""
        arrival.used = monotonic()
        if not hmac.compare_digest(arrival.key.encode(), bearer_key(scope)):
            await refuse(send, scope["path"], 401, "no open trajectory has this id and this key.")
        elif place in (("trajectories", "end"), ("trajectories", "abandon")):
            del openings.arrivals[arrival.name]
            await answer(send, 200, {"id": arrival.name, "open": False})
        elif place[0] != "t" or scope["method"] != "POST":
            await refuse(send, scope["path"], 409, "the trajectory begins with a request that samples.")
        else:
            await self._find_rollout(openings, arrival, scope, receive, send)

    async def _find_rollout(
        self, openings: Openings, arrival: Arrival, scope: Scope, receive: Receive, send: Send
    ) -> None:
        raw = await read_body(receive, MAX_BODY)
        if raw is None:
            await refuse(send, scope["path"], 413, f"the request is longer than {MAX_BODY} bytes.")
            return
        try:
            said = Said.of(raw)
        except RowError as err:
            await refuse(send, scope["path"], 400, str(err))
            return
        if openings.arrivals.pop(arrival.name, None) is not None:  # else another request of it came first
            visit = openings.choose(said, self._waiting, lambda one: one.group)
            if visit is not None:
                self._waiting.remove(visit)
            else:
                visit = await self._let_in()
            if visit is None:
                openings.arrivals[arrival.name] = arrival
                await self._refuse_another(scope, send)
                return
            self._rename(self._taken(visit), arrival)
        await self._rollout_server(scope, replayed(raw, receive), send)

    def _rename(self, visit: Visit, arrival: Arrival) -> None:
        del self._visits[visit.access.name]
        self._rollout_server.rename(visit.access, arrival.name, arrival.key)
        self._visits[arrival.name] = visit

    async def _let_in(self) -> Visit | None:
        """A trajectory of a guest, which ends as others do and of which nothing is stored; None: too many."""
        app = await self._guest()
        if app is None or len(self._guests) >= self._most_guests:
            return None
        stack = AsyncExitStack()
        visit = await stack.enter_async_context(self.waiting(app))
        self._waiting.remove(visit)

        async def stay() -> None:
            async with stack:
                await self.until_over(visit)

        visit.used = monotonic()
        staying = asyncio.create_task(stay())
        self._guests.add(staying)
        staying.add_done_callback(self._guests.discard)
        self._counts["served_guests"] += 1
        return visit

    async def _told(self, visit: Visit | None, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A client gives a reward, ends its trajectory, or gives it up."""
        if visit is None or not hmac.compare_digest(visit.access.key.encode(), bearer_key(scope)):
            await refuse(send, scope["path"], 401, "no open trajectory has this id and this key.")
            return
        if what not in _TOLD:
            await refuse(send, scope["path"], 404, f"there is {' and '.join(_TOLD)} of a trajectory.")
            return
        raw = await read_body(receive, _MAX_BODY)
        if raw is None:
            await refuse(send, scope["path"], 413, f"the request is longer than {_MAX_BODY} bytes.")
            return
        if visit.over.is_set() or visit.access.name not in self._visits:
            await refuse(send, scope["path"], 409, "the trajectory has ended; what came first stays.")
            return
        try:
            if raw and what != _ABANDON:
                visit.access.reward = stated_reward(raw.decode("utf-8", "replace"))
        except RowError as err:
            await refuse(send, scope["path"], 400, str(err))
            return
        if what != _REWARD:
            visit.abandoned = what == _ABANDON
            self._counts["served_abandoned"] += visit.abandoned
            visit.over.set()
        await answer(send, 200, {"id": visit.access.name, "open": not visit.over.is_set()})
