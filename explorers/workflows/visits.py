"""Visits of clients to a served run: a client opens a trajectory, asks the model, and ends it.

POST /trajectories with the run's token gives an id, a base URL and a key, as at `rft serve`;
with the key POST /t/ID/v1/... is OpenAI's API, and POST /trajectories/ID/(reward|end|abandon) ends it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from weakref import WeakValueDictionary

from explorers.capture.asgi import Receive, Scope, Send
from explorers.capture.bodies import BodyRefused
from explorers.conversations.model_app import answer
from explorers.conversations.rollout_app import RolloutApp
from explorers.workflows.key_bodies import KeyBodies
from explorers.workflows.openings import Arrival, Openings, Said
from explorers.workflows.rollout_server import Access, stated_reward
from explorers.workflows.visit import Visit
from explorers.workflows.visit_keys import VisitKeys
from explorers.workflows.visit_request import VisitRequest
from rft_data.core.errors import RowError

NAME_HEADER = b"x-rft-trajectory"
"""Header in which a front gives the id of a trajectory that a client opens."""
_REWARD, _END, _ABANDON = _TOLD = ("POST reward", "POST end", "POST abandon")
MOST_HELD = 64 << 20
"""Tokens that the rows of all open trajectories may have; beyond it nothing is sampled or opened."""
_FULL = f"all trajectories hold {MOST_HELD} tokens, as many as may be: end some."
_ENDED = (
    "the trajectory has ended; what came first stays. A reward that comes later is feedback: "
    "`rft data feedback add --trajectory ID`."
)
_COUNTS = ("served", "served_guests", "served_abandoned", "served_refused")


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
        self._keys = VisitKeys(token)
        self._bodies = KeyBodies()
        self._guest = guest
        self._idle_s = idle_s
        self._most_guests = guests
        self._waiting: deque[Visit] = deque()
        self._visits: dict[str, Visit] = {}
        self._unstored: WeakValueDictionary[str, Visit] = WeakValueDictionary()
        """By the row that has its reward; nobody waits for those that are forgotten."""
        self._held = 0
        """Tokens that trajectories held when their last requests ended."""
        self._guests: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()

    def take_counts(self) -> dict[str, float]:
        """Trajectories opened (`served`), of guests, given up and refused, since the last call."""
        counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in _COUNTS}

    @asynccontextmanager
    async def waiting(self, app: RolloutApp, group: str = "") -> AsyncIterator[Visit]:
        """A trajectory for the length of the block, which a client may open."""
        name = secrets.token_hex(8)
        visit = Visit(Access(name, self._keys.key(name), app), self._idle_s, group)
        self._waiting.append(visit)
        self._visits[name] = visit
        try:
            yield visit
        except BaseException:
            visit.settle(stored=False)
            raise
        finally:
            del self._visits[visit.name]
            self._held -= visit.held
            if visit in self._waiting:
                self._waiting.remove(visit)
            await app.close()

    def becomes(self, visit: Visit, experience_id: str) -> None:
        """Say which row will have the reward of a trajectory."""
        self._unstored[experience_id] = visit
        visit.becomes(experience_id)

    def stored(self, experience_id: str) -> None:
        """A row is stored: who ended its trajectory is answered."""
        visit = self._unstored.pop(experience_id, None)
        if visit is not None:
            visit.settle(stored=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing of it is read before its key is checked."""
        if scope["type"] != "http":
            return
        asked = VisitRequest(scope, receive, send)
        if asked.what == "GET /health":
            await answer(send, 200, {"waiting": len(self._waiting), "open": len(self._visits)})
        elif (why := self._keys.refusal(asked)) is not None:
            await asked.refuse(401, why)
        elif self._held >= MOST_HELD and (asked.opens or asked.prefix == "t"):
            await asked.refuse(429, _FULL, 5)
        else:
            await self._admitted(asked)

    async def _admitted(self, asked: VisitRequest) -> None:
        """Answer a request of who has the key for it."""
        try:
            if not asked.opens and self._used(asked.name) is None:
                await self._refuse_ended(asked)
                return
            async with self._bodies.read(asked.name, asked.scope, asked.receive, asked.most_bytes) as raw:
                if asked.opens:
                    await self._open(asked, raw)
                else:
                    await self._spoken(asked, raw)
        except BodyRefused as err:
            await asked.refuse(err.status, str(err), err.wait_s)
        finally:
            self._used(asked.name)

    def _used(self, name: str) -> Visit | Arrival | None:
        """An open trajectory, which a request was made of now; None: there is none of this id."""
        arrivals = {} if self._openings is None else self._openings.arrivals
        found = self._visits.get(name) or arrivals.get(name)
        if found is not None:
            found.used = monotonic()
        return found

    async def _spoken(self, asked: VisitRequest, raw: bytes) -> None:
        """Answer a request of an open trajectory."""
        found = self._used(asked.name)
        if found is None:
            await self._refuse_ended(asked)
        elif isinstance(found, Arrival):
            await self._begin(found, asked, raw)
        elif asked.prefix == "trajectories":
            await self._told(found, asked, raw)
        else:
            await self._answered(found, asked, raw)

    async def _answered(self, visit: Visit, asked: VisitRequest, raw: bytes) -> None:
        """Have the model of a trajectory answer."""
        try:
            await visit.access.answer(asked.rest, raw, asked.scope, asked.receive, asked.send)
        finally:
            if self._visits.get(visit.name) is visit:
                self._held += visit.app.held - visit.held
                visit.held = visit.app.held

    async def _open(self, asked: VisitRequest, raw: bytes) -> None:
        if raw.strip() not in (b"", b"{}"):
            await asked.refuse(400, "a trajectory of a run has the run's task; send no body.")
            return
        headers = dict(asked.scope["headers"])
        named = headers.get(NAME_HEADER, b"") if self.named_by_front else b""
        name = named.decode("latin-1") or secrets.token_hex(8)
        if not await self._arrived(name):
            await self._refuse_another(asked)
            return
        host = headers.get(b"host", b"").decode("latin-1")
        base = f"{asked.scope.get('scheme', 'http')}://{host}/t/{name}/v1"
        self._counts["served"] += 1
        await answer(asked.send, 201, {"id": name, "base_url": base, "key": self._keys.key(name)})

    async def _arrived(self, name: str) -> bool:
        """Give a new trajectory its rollout, or wait for its first request; False: too many are open."""
        if self._openings is not None:
            if len(self._openings.arrivals) >= self._most_guests + len(self._waiting):
                return False
            self._openings.arrive(Arrival(name), self._idle_s)
            return True
        visit = self._waiting.popleft() if self._waiting else await self._let_in()
        if visit is not None:
            self._taken(visit, name)
        return visit is not None

    async def _begin(self, arrival: Arrival, asked: VisitRequest, raw: bytes) -> None:
        """The first request of a trajectory finds its rollout, and is answered by it."""
        assert self._openings is not None  # noqa: S101 - for the type checker
        if asked.prefix == "trajectories" and asked.what in (_END, _ABANDON):
            self._openings.arrivals.pop(arrival.name, None)
            await answer(asked.send, 200, {"id": arrival.name, "open": False})
            return
        if not asked.samples or asked.scope["method"] != "POST":
            await asked.refuse(409, "the trajectory begins with a request that samples.")
            return
        try:
            said = Said.of(raw)
        except RowError as err:
            await asked.refuse(400, str(err))
            return
        async with arrival.choosing:
            visit = self._visits.get(arrival.name) or await self._chosen(self._openings, said, arrival)
        if visit is None:
            await self._refuse_another(asked)
        else:
            await self._answered(visit, asked, raw)

    async def _chosen(self, openings: Openings, said: Said, arrival: Arrival) -> Visit | None:
        """The rollout for a first request, or a guest's; None: too many are open."""
        visit = openings.choose(said, self._waiting, lambda one: one.group)
        if visit is not None:
            self._waiting.remove(visit)
        else:
            visit = await self._let_in()
        if visit is not None:
            openings.arrivals.pop(arrival.name, None)
            self._taken(visit, arrival.name)
        return visit

    def _taken(self, visit: Visit, name: str) -> None:
        """A client has opened a trajectory, which has another id from now on."""
        del self._visits[visit.name]
        visit.access.name, visit.access.key = name, self._keys.key(name)
        self._visits[name] = visit
        visit.begin()

    async def _let_in(self) -> Visit | None:
        """A trajectory of a guest, which ends as others do and of which nothing is stored; None: too many."""
        app = await self._guest()
        if app is None or len(self._guests) >= self._most_guests:
            return None
        stack = AsyncExitStack()
        visit = await stack.enter_async_context(self.waiting(app))
        self._waiting.remove(visit)
        visit.settle(stored=False)

        async def stay() -> None:
            async with stack:
                await visit.until_over()

        visit.used = monotonic()
        staying = asyncio.create_task(stay())
        self._guests.add(staying)
        staying.add_done_callback(self._guests.discard)
        self._counts["served_guests"] += 1
        return visit

    async def _told(self, visit: Visit, asked: VisitRequest, raw: bytes) -> None:
        """A client gives a reward, ends its trajectory, or gives it up."""
        if asked.what not in _TOLD:
            await asked.refuse(404, f"there is {' and '.join(_TOLD)} of a trajectory.")
            return
        if visit.over.is_set():
            await self._refuse_ended(asked)
            return
        try:
            if raw and asked.what != _ABANDON:
                visit.access.reward = stated_reward(raw.decode("utf-8", "replace"))
        except RowError as err:
            await asked.refuse(400, str(err))
            return
        said: dict[str, object] = {"id": visit.name, "open": asked.what == _REWARD}
        if asked.what != _REWARD:
            visit.abandoned = asked.what == _ABANDON
            self._counts["served_abandoned"] += visit.abandoned
            visit.over.set()
        if asked.what == _END:
            others = (one for one in self._visits.values() if one is not visit and not one.over.is_set())
            await visit.settled(alone=all(one.group != visit.group for one in others))
            said |= {"experience_id": visit.experience_id, "stored": visit.is_stored}
        await answer(asked.send, 200, said)

    async def _refuse_another(self, asked: VisitRequest) -> None:
        self._counts["served_refused"] += 1
        await asked.refuse(429, "no more trajectories may be open now.", 1)

    @staticmethod
    async def _refuse_ended(asked: VisitRequest) -> None:
        if asked.prefix == "trajectories":
            await asked.refuse(409, _ENDED)
        else:
            await asked.refuse(401, "no rollout has this URL and this key, or it has ended.")
