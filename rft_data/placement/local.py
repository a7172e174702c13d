"""Roles in child processes of this one: they run beside each other and beside the caller."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from rft_data.core.errors import RftError, RoleDiedError
from rft_data.core.protocols import RoleSpec
from rft_data.placement.background import Background
from rft_data.placement.calls import Awaited, Birth, Patience, encode_call
from rft_data.placement.devices import Devices
from rft_data.placement.machine import warnings_for
from rft_data.placement.process import RoleProcess


class LocalRole:
    """A role in a child process; safe to call from many threads.

    Callbacks of its futures run in the placement's thread: they must not wait for a role.
    """

    def __init__(
        self,
        birth: Birth,
        launch: Callable[[], RoleProcess],
        release: Callable[[], None],
        background: Background,
    ) -> None:
        """Nothing runs before `begin`.

        `launch`: starts a process for it. `release`: called when it is closed.
        """
        self._birth = birth
        self._launch = launch
        self._release = release
        self._background = background
        self._process: RoleProcess | None = None
        self._closed = False
        self.incarnation = 0

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._birth.name

    def call(self, method: str, returns: Any, *, deadline_s: float, **arguments: Any) -> Future[Any]:
        """Have the role's process call a method; see `protocols.Role`."""
        awaited = Awaited(self.name, method, returns, deadline_s)
        try:
            call = encode_call(self.name, method, arguments)
        except RftError as err:
            awaited.failed(err)
        else:
            if not self._background.submit(self._send, awaited, call):
                awaited.failed(RoleDiedError(f"role '{self.name}' is closed, and so is its placement."))
        return awaited.future

    def restart(self) -> Future[None]:
        """End its process, and start another from the same spec; see `protocols.Role`."""
        return self._background.start(self._restart())

    def close(self) -> None:
        """Ask it to close, then end its process; idempotent."""
        if self._background.alive:
            self._background.run(self.end(now=False))

    async def begin(self) -> None:
        """Start its process. In the placement's thread, as the rest below."""
        self._process = self._launch()
        await self._process.be_born(self._birth.written())

    async def end(self, now: bool) -> None:
        """What `close` does; `now`: do not ask first."""
        self._closed = True
        if self._process is not None:
            await (self._process.end("was closed") if now else self._process.close())
        self._release()

    async def _restart(self) -> None:
        if self._process is not None:
            await self._process.end("was restarted")
        if self._closed:
            raise RoleDiedError(f"role '{self.name}' is closed; start it anew.")
        self.incarnation += 1
        await self.begin()

    def _send(self, awaited: Awaited, call: bytes) -> None:
        if self._process is None:
            awaited.failed(RoleDiedError(f"role '{self.name}' has no process."))
        else:
            self._process.send(awaited, call)


class LocalPlacement:
    """Child processes of this machine, each with its share of the GPUs and as many threads as CPUs."""

    overlaps = True

    def __init__(
        self,
        hub: tuple[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Start the thread that looks after the roles.

        Args:
            hub: (address, token) of the hub whose client every role is given; None: they get no buffer.
            environment: variables for the children; what is set in this process stays as it is.
        """
        self._hub = hub
        self._environment = dict(environment or {})
        self._patience = patience or Patience()
        self._devices = Devices()
        self._background = Background("local-placement")
        self._roles: dict[str, LocalRole] = {}

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """What there may be too little of here, in words.

        Raises: RecipeError if there are too few GPUs.
        """
        self._devices.check({spec.name: spec.gpus for spec in specs})
        return warnings_for(specs)

    def start(self, spec: RoleSpec) -> LocalRole:
        """Start a role's process; several threads may start one each.

        Raises: RecipeError if no GPU is left for it, what its factory raises, RoleDiedError, StalledError.
        """
        birth = Birth.of(spec, self._hub)
        if spec.name in self._roles:
            raise RftError(f"there is a role '{spec.name}' already; give each its own name.")
        devices = self._devices.reserve(spec.name, spec.gpus)
        role = LocalRole(
            birth,
            lambda: RoleProcess(spec.name, self._surroundings(spec, devices), self._patience),
            lambda: self._forget(spec.name),
            self._background,
        )
        self._roles[spec.name] = role
        try:
            self._background.run(role.begin())
        except RftError:
            self._forget(spec.name)
            raise
        return role

    def _surroundings(self, spec: RoleSpec, devices: Sequence[str]) -> dict[str, str]:
        share = {"OMP_NUM_THREADS": str(max(1, int(spec.cpus))), "CUDA_VISIBLE_DEVICES": ",".join(devices)}
        return {**self._environment, **os.environ, **share}

    def _forget(self, name: str) -> None:
        self._roles.pop(name, None)
        self._devices.release(name)

    def close(self, *, now: bool = False) -> None:
        """End every process started here, all at the same time; idempotent.

        Args: now: do not ask them to close first.
        Raises: StalledError if one cannot be ended.
        """
        if self._background.alive:
            try:
                self._background.run(self._end_all(now))
            finally:
                self._background.close()

    async def _end_all(self, now: bool) -> None:
        ends = await asyncio.gather(
            *(role.end(now) for role in list(self._roles.values())), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException):
                raise end
