"""Roles in threads of their own that answer after a random while, as processes on a busy machine do."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rft_data.core.protocols import BufferClient
from rft_data.core.roles import RoleSpec
from rft_data.placement.inline import InlineRole

SLOWEST_S = 0.02


class JitteryRole:
    """A role whose calls run one after another in a thread, each after a pause."""

    def __init__(self, spec: RoleSpec, buffer: BufferClient | None, seed: str) -> None:
        self._role = InlineRole(spec, buffer)
        self._thread = ThreadPoolExecutor(1)
        self._random = random.Random(seed)  # noqa: S311 - no secret

    @property
    def name(self) -> str:
        return self._role.name

    @property
    def incarnation(self) -> int:
        return self._role.incarnation

    def call(self, method: str, returns: object, *, deadline_s: float, **arguments: object) -> Future[object]:
        pause = self._random.choice((0.0, 0.0, SLOWEST_S)) * self._random.random()

        def late() -> object:
            time.sleep(pause)
            return self._role.call(method, returns, deadline_s=deadline_s, **arguments).result()

        return self._thread.submit(late)

    def restart(self) -> Future[None]:
        return self._thread.submit(lambda: self._role.restart().result())

    def close(self) -> None:
        self._thread.submit(self._role.close).result()
        self._thread.shutdown()


class Jittery:
    """Starts roles in threads; every placement of one seed pauses alike."""

    overlaps = True

    def __init__(self, buffer: BufferClient | None, seed: int) -> None:
        self._buffer = buffer
        self._seed = seed
        self._roles: list[JitteryRole] = []

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        return []

    def start(self, spec: RoleSpec) -> JitteryRole:
        role = JitteryRole(spec, self._buffer, f"{self._seed}/{spec.name}")
        self._roles.append(role)
        return role

    def close(self, *, now: bool = False) -> None:
        for role in self._roles:
            role.close()
