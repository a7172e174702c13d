"""Roles in child processes of this one: they run at the same time as each other and the caller."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future

from rft_data.core.errors import RecipeError, RftError, RoleDiedError
from rft_data.core.roles import RoleSpec
from rft_data.placement.background import Background
from rft_data.placement.calls import Awaited, Patience, RoleSetup, encode_call
from rft_data.placement.devices import Devices
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.machine import warnings_for
from rft_data.placement.process import RoleProcess


class LocalRole:
    """A role in a child process; safe to call from many threads.

    Callbacks of its futures run in the placement's thread: they must not wait for a role.
    """

    def __init__(
        self,
        setup: RoleSetup,
        launch: Callable[[], RoleProcess],
        release: Callable[[], None],
        background: Background,
    ) -> None:
        """Prepare the role; `begin` starts its process.

        `launch`: starts a process for it. `release`: called when it is closed.
        """
        self._setup = setup
        self._launch = launch
        self._release = release
        self._background = background
        self._process: RoleProcess | None = None
        self._closed = False
        self.incarnation = 0

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._setup.name

    def call(self, method: str, returns: object, *, deadline_s: float, **arguments: object) -> Future[object]:
        """Call a method in the role's process; see `protocols.Role`."""
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
        """End the role's process, and start another from the same spec; see `protocols.Role`."""
        return self._background.start(self._restart())

    def close(self) -> None:
        """Ask the role to close, then end its process; idempotent."""
        if self._background.alive:
            self._background.run(self.end(now=False))

    async def begin(self) -> None:
        """Start the role's process. Called in the placement's thread, as are all methods below."""
        self._process = self._launch()
        await self._process.make_role(self._setup.encode())

    async def end(self, now: bool) -> None:
        """Close the role and end its process; `now`: end the process without asking the role first."""
        self._closed = True
        if self._process is not None:
            await (self._process.end("was closed") if now else self._process.close())
        self._release()

    async def _restart(self) -> None:
        if self._process is not None:
            await self._process.end("was restarted")
        if self._closed:
            raise RoleDiedError(f"role '{self.name}' is closed; start it again with Placement.start.")
        self.incarnation += 1
        await self.begin()

    def _send(self, awaited: Awaited, call: bytes) -> None:
        if self._process is None:
            awaited.failed(RoleDiedError(f"role '{self.name}' has no process."))
        else:
            self._process.send(awaited, call)


class LocalPlacement:
    """Starts each role in a child process, with its share of the GPUs and one thread for each of its CPUs."""

    overlaps = True

    def __init__(
        self,
        hub: HubAccess | None = None,
        environment: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Start the thread that watches the processes of the roles.

        Args:
            hub: the hub, with its secret, whose client every role is given; None: they get no buffer.
            environment: variables for the children; a variable that this process has keeps its value.
        """
        self._hub = hub
        self._environment = dict(environment or {})
        self._patience = patience or Patience()
        self._devices = Devices()
        self._gpus: dict[str, float] = {}
        """GPUs of the roles that were announced last, and of those for which there was room beside them."""
        self._background = Background("local-placement")
        self._roles: dict[str, LocalRole] = {}

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """Warnings about CPUs and memory that may not be enough for these roles.

        Raises: RecipeError if there are too few GPUs.
        """
        self._gpus = {spec.gpu_group or spec.name: spec.gpus for spec in specs}
        self._devices.check(self._gpus)
        return warnings_for(specs)

    def reserve(self, spec: RoleSpec) -> bool:
        """Whether there are GPUs for this role beside those of all others; CPUs are shared."""
        try:
            self._devices.check({**self._gpus, spec.name: spec.gpus})
        except RecipeError:
            return False
        self._gpus[spec.name] = spec.gpus
        return True

    def release(self, name: str) -> None:
        """Leave its GPUs to others; idempotent."""
        self._gpus.pop(name, None)

    def drained(self) -> Container[str]:
        """None: this machine stays."""
        return ()

    def start(self, spec: RoleSpec) -> LocalRole:
        """Start a role's process; several threads may call this at once.

        Raises: RecipeError if no GPU is left for it, what its factory raises, RoleDiedError, StalledError.
        """
        setup = RoleSetup.of(spec, self._hub)
        if spec.name in self._roles:
            raise RftError(f"there is a role '{spec.name}' already; give each its own name.")
        devices = self._devices.reserve(spec.name, spec.gpus, spec.gpu_group)
        role = LocalRole(
            setup,
            lambda: RoleProcess(spec.name, self._process_environment(spec, devices), self._patience),
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

    def _process_environment(self, spec: RoleSpec, devices: Sequence[str]) -> dict[str, str]:
        share = {"OMP_NUM_THREADS": str(max(1, int(spec.cpus))), "CUDA_VISIBLE_DEVICES": ",".join(devices)}
        return {**self._environment, **os.environ, **share}

    def _forget(self, name: str) -> None:
        self._roles.pop(name, None)
        self._devices.release(name)

    def close(self, *, now: bool = False) -> None:
        """End all processes started here, at the same time; idempotent.

        Args: now: end them without asking the roles to close first.
        Raises: StalledError if a process does not end.
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
