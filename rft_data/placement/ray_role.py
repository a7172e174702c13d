"""One role in a Ray actor: the actor's body, and the handle that its caller has."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from rft_data.core.errors import RftError, RoleDiedError, StalledError
from rft_data.core.lookup import need
from rft_data.placement.background import Background
from rft_data.placement.calls import CLOSE, Awaited, Birth, Patience, encode_call, encode_failure
from rft_data.placement.host import Host
from rft_data.placement.hub.wire import decode_answer, encode_result

log = logging.getLogger(__name__)


class RoleActor:
    """The actor's body: a role, and calls of it."""

    def __init__(self, birth: bytes, environment: Mapping[str, str], threads: int) -> None:
        """Make the role; what its factory raises is told by `begin`."""
        born = Birth.read(birth)
        self._name = born.name
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        sys.path += [entry for entry in born.path if entry not in sys.path]
        try:
            self._host = Host(born)
            self._begun = encode_result(None)
        except RftError as err:
            self._begun = encode_failure(err)

    def __repr__(self) -> str:
        """What Ray puts before each line it writes."""
        return self._name

    async def begin(self) -> bytes:
        """The answer of the factory."""
        return self._begun

    async def answer(self, call: bytes) -> bytes:
        """The answer of a call."""
        return await self._host.answer(call)


class RayRole:
    """A role in an actor; safe to call from many threads.

    Callbacks of its futures run in the placement's thread: they must not wait for a role.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], background: Background, patience: Patience
    ) -> None:
        """Start the actor. `make`: makes one, and returns its handle.

        Raises: what the factory raises, RoleDiedError, StalledError, BusyError.
        """
        self._name = name
        self._make = make
        self._background = background
        self._patience = patience
        self._actor: Any = None
        self.incarnation = 0
        self._begin()

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._name

    def call(self, method: str, returns: Any, *, deadline_s: float, **arguments: Any) -> Future[Any]:
        """Have the actor call a method; see `protocols.Role`."""
        awaited = Awaited(self.name, method, returns, deadline_s)
        try:
            if self._actor is None:
                raise RoleDiedError(f"role '{self.name}' has no actor; restart it.")
            answer = self._actor.answer.remote(encode_call(self.name, method, arguments))
        except RftError as err:
            awaited.failed(err)
            return awaited.future
        self._background.submit(awaited.watch, self._background.loop, "a Ray actor")
        answer.future().add_done_callback(lambda told: self._background.submit(self._settle, awaited, told))
        return awaited.future

    def restart(self) -> Future[None]:
        """Kill the actor, and start another from the same spec; see `protocols.Role`."""
        self._kill()
        self.incarnation += 1
        begun: Future[None] = Future()
        # Ray offers no future for the place an actor waits for: a thread waits instead of the caller
        waiter = threading.Thread(
            target=self._tell_begun, args=(begun,), name=f"restart-{self.name}", daemon=True
        )
        waiter.start()
        return begun

    def _tell_begun(self, begun: Future[None]) -> None:
        try:
            self._begin()
        except BaseException as err:  # noqa: BLE001 - of Ray too: whoever waits must be told
            begun.set_exception(err if isinstance(err, RftError) else self._told(err))
        else:
            begun.set_result(None)

    def close(self) -> None:
        """Ask it to close, then kill the actor; idempotent."""
        close_all([self], self._patience.close_s)

    def ask_to_close(self) -> Any:
        """Ask only; returns what Ray can wait for, or None if there is no actor."""
        return self._actor and self._actor.answer.remote(encode_call(self.name, CLOSE, {}))

    def closed(self, asked: Any) -> None:
        """Look whether it did as asked, which has been waited for, and kill the actor."""
        ray = _ray()
        try:
            decode_answer(ray.get(asked, timeout=0))
        except (RftError, ray.exceptions.RayError) as err:
            log.warning("role '%s' did not close as asked: %s", self.name, err)
        self._kill()

    def _begin(self) -> None:
        ray = _ray()
        actor = self._actor = self._make()
        try:
            decode_answer(ray.get(actor.begin.remote(), timeout=self._patience.start_s))
        except BaseException as err:
            self._kill()
            if isinstance(err, ray.exceptions.GetTimeoutError):
                raise StalledError(
                    f"the run waited {self._patience.start_s:g} s for role '{self.name}' (a Ray actor) to "
                    "start; its place is taken, or its factory hangs: see `ray status` and its log."
                ) from err
            if isinstance(err, ray.exceptions.RayError):
                raise self._told(err) from err
            raise

    def _kill(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            _ray().kill(actor, no_restart=True)

    def _settle(self, awaited: Awaited, told: Future[bytes]) -> None:
        error = told.exception()
        if error is None:
            awaited.answered(told.result())
        else:
            awaited.failed(self._told(error))

    def _told(self, error: BaseException) -> RftError:
        """An error of Ray's own as one of ours."""
        if isinstance(error, _ray().exceptions.RayActorError):
            return RoleDiedError(
                f"role '{self.name}' (a Ray actor) is gone; restart it, or resume the run. Ray says: {error}"
            )
        return RftError(f"role '{self.name}' (a Ray actor) could not be called: {error}")


def close_all(roles: Sequence[RayRole], deadline_s: float) -> None:
    """Ask all of them to close, at the same time, and end their actors."""
    asked = [(role, answer) for role in roles if (answer := role.ask_to_close()) is not None]
    if asked:
        answers = [answer for _, answer in asked]
        _ray().wait(answers, num_returns=len(answers), timeout=deadline_s)
    for role, answer in asked:
        role.closed(answer)


def _ray() -> Any:
    return need("ray", "ray", "a placement on Ray")
