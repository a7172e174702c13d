"""The address of the model for programs: one server for all rollouts, a URL prefix and a key for each."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from explorers.capture import answers
from explorers.capture.asgi import Receive, Scope, Send, bearer, replayed
from explorers.capture.bodies import Bodies, BodyRefused
from explorers.capture.listening import listening
from explorers.conversations.model_app import MAX_BODY, answer, refuse
from explorers.conversations.rollout_app import RolloutApp
from explorers.rewards.contract import is_finite
from rft_data.core.errors import RowError

Stated: TypeAlias = float | tuple[float, dict[str, float]]
"""A reward, alone or with its parts."""

_MAX_REWARD = 1 << 16
_BODIES = 1 << 30
"""Bytes that the bodies of all requests under way may have."""


@dataclass(slots=True)
class Access:
    """One program's way to its rollout: the key of its requests, and the app that answers them."""

    name: str
    key: str
    app: RolloutApp
    reward: Stated | None = None
    """The reward that it reported, if it did."""

    async def answer(self, rest: str, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of its program; `rest`: the path after the program's URL, `raw`: the body."""
        if rest != "reward" or scope["method"] != "POST":
            await self.app({**scope, "path": f"/{rest}"}, replayed(raw, receive), send)
            return
        try:
            stated = self.reward = stated_reward(raw.decode("utf-8", "replace"))
        except RowError as err:
            await refuse(send, 400, str(err))
            return
        await answer(send, 200, {"reward": stated if isinstance(stated, float) else stated[0]})


class RolloutServer:
    """ASGI application: `/t/NAME/v1/...` is the model of a rollout, `/t/NAME/reward` takes its reward."""

    def __init__(self) -> None:
        self._accesses: dict[str, Access] = {}
        self._bodies = Bodies(_BODIES)
        self._users = 0
        self._changing = asyncio.Lock()
        self._serving = AsyncExitStack()
        self._address = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        _, prefix, name, rest = [*scope["path"].split("/", 3), "", "", ""][:4]
        access = self._accesses.get(name)
        given = bearer_key(scope)
        if prefix != "t" or access is None or not hmac.compare_digest(access.key.encode(), given):
            await refuse(send, 401, "no rollout has this URL and this key, or it has ended.")
            return
        is_reward = rest == "reward" and scope["method"] == "POST"
        try:
            async with self._bodies.read(scope, receive, _MAX_REWARD if is_reward else MAX_BODY) as raw:
                await access.answer(rest, raw, scope, receive, send)
        except BodyRefused as err:
            await answers.refuse(send, f"/{rest}", err.status, str(err), wait_s=err.wait_s)

    @asynccontextmanager
    async def open(self, app: RolloutApp) -> AsyncIterator[Access]:
        """Access for the length of the block; what is being sampled at its end is given up."""
        access = Access(secrets.token_hex(8), secrets.token_urlsafe(24), app)
        self._accesses[access.name] = access
        try:
            yield access
        finally:
            del self._accesses[access.name]
            await app.close()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The server's address, on loopback. It runs while there is such a block, in their event loop."""
        async with self._changing:
            if not self._users:
                self._address = await self._serving.enter_async_context(listening(self))
            self._users += 1
        try:
            yield self._address
        finally:
            await asyncio.shield(self._left())

    async def _left(self) -> None:
        async with self._changing:
            self._users -= 1
            if not self._users:
                await self._serving.aclose()


def bearer_key(scope: Scope) -> bytes:
    """The key that a request carries; empty without one."""
    return bearer(scope["headers"]).encode("latin-1")


def stated_reward(text: str) -> Stated:
    """A reward as a program says it: a number, or `{"reward": number, "parts": {"name": number}}`.

    Raises: RowError for anything else.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise RowError(f"the program's reward is {text[:80]!r}; wanted a number or JSON.") from err
    value, parts = (found.get("reward"), found.get("parts")) if isinstance(found, dict) else (found, None)
    if not _is_number(value) or not (parts is None or isinstance(parts, dict)):
        raise RowError(
            f'the program\'s reward is {text[:80]!r}; wanted a finite number, or {{"reward": ...}}.'
        )
    if parts is None:
        return float(value)
    wrong = next((name for name, part in parts.items() if not _is_number(part)), None)
    if wrong is not None:
        raise RowError(f"part {wrong!r} of the program's reward is {parts[wrong]!r}; wanted a finite number.")
    return float(value), {name: float(part) for name, part in parts.items()}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)
