"""One address in front of the explorers of an A/B test.

A trajectory is opened at an explorer of its arm and stays there. The front keeps no state: the id of a
trajectory says where it is, so that a restart of the run changes no arm.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from explorers.capture.asgi import Receive, Scope, Send
from explorers.capture.bodies import BodyRefused
from explorers.conversations.model_app import answer
from explorers.workflows.key_bodies import KeyBodies
from explorers.workflows.visit_keys import VisitKeys
from explorers.workflows.visit_request import VisitRequest
from explorers.workflows.visits import NAME_HEADER
from rft_data.core.arms import Arm, drawn_arm, drawn_place
from rft_data.core.lookup import need

_SCHEME_HEADER = b"x-forwarded-proto"
_OF_ONE_CONNECTION = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade"}
_NOT_PASSED_ON = _OF_ONE_CONNECTION | {NAME_HEADER, _SCHEME_HEADER}
"""Headers that explorers take from the front alone: a client names no trajectory itself."""
_NO_ROUTE = "a client opens POST /trajectories, and speaks to what that answers."
_GONE = "the explorer of this trajectory has ended, and the trajectory with it; open another."
_AWAY = "the explorer of this trajectory is being started; open another in a moment."


class Front:
    """ASGI application over the Unix sockets of explorers."""

    def __init__(
        self, sockets: Mapping[Arm, Sequence[str]], *, token: object, seed: int, share: float
    ) -> None:
        """Nothing is connected to before the first request.

        Args:
            sockets: where the explorers of each arm listen.
            token: the workflow's; keys are made from it, so they are checked here already.
            seed: of the run; with it, an id has the same arm again.
            share: of the trajectories that are of the arm `old`.

        Raises: RecipeError for a token that is too short.
        """
        self._keys = VisitKeys(token)
        self._bodies = KeyBodies()
        self._httpx = need("httpx2", "ops", "the front of an A/B test")
        self._sockets = sockets
        self._seed = seed
        self._share = share
        self._ways = {path: self._way(path) for paths in sockets.values() for path in paths}
        self._began = False

    def place(self, trajectory: str) -> str:
        """The socket of the explorer that a trajectory is at."""
        paths = self._sockets[drawn_arm(self._seed, trajectory, self._share)]
        return paths[drawn_place(self._seed, trajectory, len(paths))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing of it is read before its key is checked."""
        if scope["type"] != "http":
            return
        asked = VisitRequest(scope, receive, send)
        if asked.what == "GET /health":
            await self._health(send)
        elif not asked.opens and not asked.name:
            await asked.refuse(404, _NO_ROUTE)
        elif (why := self._keys.refusal(asked)) is not None:
            await asked.refuse(401, why)
        else:
            try:
                async with self._bodies.read(asked.name, scope, receive, asked.most_bytes) as raw:
                    await self._admitted(asked, raw)
            except BodyRefused as err:
                await asked.refuse(err.status, str(err), err.wait_s)

    async def _admitted(self, asked: VisitRequest, raw: bytes) -> None:
        """Answer a request of who has the key for it."""
        if not asked.opens:
            if not await self._passed(self.place(asked.name), asked, raw):
                await asked.refuse(503, _GONE)
            return
        name = secrets.token_hex(8)
        if not await self._passed(self.place(name), asked, raw, [(NAME_HEADER, name.encode())]):
            await asked.refuse(429, _AWAY, 1)

    async def close(self) -> None:
        """Close the connections."""
        for way in self._ways.values():
            await way.aclose()

    def _way(self, path: str) -> Any:
        # no client of httpx: it would add headers and cookies of its own to those of users.
        # Each request has its own connection: one that is kept may be closed at the moment of its next use
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return self._httpx.AsyncHTTPTransport(uds=path, limits=limits)

    async def _health(self, send: Send) -> None:
        """Numbers of waiting and open requests, in all and by arm; 503 until all explorers answered once."""
        found: dict[str, Any] = {"waiting": 0, "open": 0, "arms": {}}
        heard = 0
        for arm, paths in self._sockets.items():
            counts = found["arms"][str(arm)] = {"waiting": 0, "open": 0}
            for said in filter(None, await asyncio.gather(*map(self._said, paths))):
                heard += 1
                for what in counts:
                    counts[what] += said[what]
                    found[what] += said[what]
        self._began = self._began or heard == len(self._ways)
        await answer(send, 200 if self._began and heard else 503, found)

    async def _said(self, path: str) -> dict[str, int] | None:
        """An explorer's own report; None when it does not answer."""
        asked = self._httpx.Request("GET", "http://explorer/health")
        try:
            said = await self._ways[path].handle_async_request(asked)
            told: dict[str, int] = json.loads(await said.aread())
        except self._httpx.TransportError:
            return None
        return told

    async def _passed(
        self, path: str, asked: VisitRequest, raw: bytes, more: Sequence[tuple[bytes, bytes]] = ()
    ) -> bool:
        """Have an explorer answer a request; False, and nothing was sent, when it cannot be reached."""
        scope = asked.scope
        scheme = (_SCHEME_HEADER, scope["scheme"].encode())
        passed = self._httpx.Request(
            scope["method"],
            self._httpx.URL("http://explorer", raw_path=_raw_path(scope)),
            headers=[*_passed_on(scope["headers"]), scheme, *more],
            content=raw,
        )
        answering = asyncio.create_task(self._answered(path, passed, asked.send))
        leaving = asyncio.create_task(_left(asked.receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else True
        finally:
            for one in (answering, leaving):
                one.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answered(self, path: str, asked: Any, send: Send) -> bool:
        try:
            said = await self._ways[path].handle_async_request(asked)
        except self._httpx.TransportError:  # it is not there, or has ended
            return False
        try:
            headers = _passed_on(said.headers.raw)
            await send({"type": "http.response.start", "status": said.status_code, "headers": headers})
            async for part in said.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except self._httpx.TransportError:
            return True  # in the midst of an answer, which the client sees cut off
        finally:
            await said.aclose()
        await send({"type": "http.response.body", "body": b""})
        return True


async def _left(receive: Receive) -> None:
    """Wait until the client of a request has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _passed_on(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _NOT_PASSED_ON]


def _raw_path(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path
