"""Roles in the caller's own process: a call runs at once, and the caller waits. For tests and debugging."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rft_data.core.errors import RftError, RoleDiedError, StalledError
from rft_data.core.protocols import BufferClient
from rft_data.core.roles import RoleSpec
from rft_data.placement.calls import CLOSE, plain_arguments
from rft_data.placement.host import broken, make, public_method

log = logging.getLogger(__name__)
_CLOSE_S = 30.0


class InlineRole:
    """A role whose coroutines all run on one private event loop, so that an engine can keep tasks on it."""

    def __init__(self, spec: RoleSpec, buffer: BufferClient | None) -> None:
        """Make the role.

        Raises: what the factory raises (RftError).
        """
        self._spec = spec
        self._buffer = buffer
        self._role: object = None
        self._runner = asyncio.Runner()
        self._closed = True
        self.incarnation = 0
        self._start()

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._spec.name

    def call(self, method: str, returns: object, *, deadline_s: float, **arguments: object) -> Future[object]:
        """Call a method now; the future is done when this returns.

        Arguments and result are not copied, and `returns` is not checked. Only a coroutine is stopped at the
        deadline.
        """
        future: Future[object] = Future()
        try:
            if self._closed:
                raise RoleDiedError(f"role '{self.name}' is closed; restart it before it is called again.")
            result = self._run(public_method(self.name, self._role, method), arguments, deadline_s)
        except RftError as err:
            future.set_exception(err)
        except Exception as err:  # noqa: BLE001 - a role is user code
            wrapped = broken(self.name, method, err)
            wrapped.__cause__ = err
            future.set_exception(wrapped)
        else:
            future.set_result(result)
        return future

    def restart(self) -> Future[None]:
        """Close the role and make it again from its spec; the future is done when this returns."""
        self.close()
        self.incarnation += 1
        future: Future[None] = Future()
        try:
            self._start()
        except RftError as err:
            future.set_exception(err)
        else:
            future.set_result(None)
        return future

    def close(self) -> None:
        """Close the role, if it has a `close`, and its loop; idempotent."""
        if self._closed:
            return
        if hasattr(self._role, CLOSE) and (error := self.call(CLOSE, None, deadline_s=_CLOSE_S).exception()):
            log.warning("role '%s' did not close as asked: %s", self.name, error)
        self._closed = True
        self._runner.close()

    def _start(self) -> None:
        self._role = make(self.name, self._spec.factory, self._buffer, plain_arguments(self._spec))
        self._runner = asyncio.Runner()
        self._closed = False

    def _run(self, call: Callable[..., object], arguments: dict[str, object], deadline_s: float) -> object:
        if not inspect.iscoroutinefunction(call):
            return call(**arguments)

        async def bounded() -> object:
            try:
                async with asyncio.timeout(deadline_s) as limit:
                    return await call(**arguments)
            except TimeoutError as err:
                if not limit.expired():
                    raise
                raise StalledError(
                    f"the run waited {deadline_s:g} s for role '{self.name}' (in this process) to answer "
                    f"'{call.__name__}', and stopped it; allow it more time."
                ) from err

        return self._runner.run(bounded())


class InlinePlacement:
    """Starts every role in this process."""

    overlaps = False

    def __init__(self, buffer: BufferClient | None = None) -> None:
        """`buffer`: the buffer that every role is given."""
        self._buffer = buffer
        self._roles: list[InlineRole] = []

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """No warnings: the roles run one at a time, so they cannot need too much together."""
        return []

    def start(self, spec: RoleSpec) -> InlineRole:
        """Make a role in this process.

        Raises: what its factory raises (RftError).
        """
        role = InlineRole(spec, self._buffer)
        self._roles.append(role)
        return role

    def close(self, *, now: bool = False) -> None:
        """Close every role. `now` changes nothing: a role in this process cannot be killed. Idempotent."""
        for role in self._roles:
            role.close()
