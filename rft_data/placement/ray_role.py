"""One role in a Ray actor: the class of the actor, and the object through which the caller uses it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Protocol

from rft_data.core.errors import RftError, RoleDiedError, StalledError
from rft_data.core.lookup import own_code_from, own_folders
from rft_data.core.masking import mask_streams
from rft_data.placement.background import Background
from rft_data.placement.calls import CLOSE, Awaited, Patience, RoleSetup, encode_call, encode_failure
from rft_data.placement.host import Host
from rft_data.placement.hub.wire import decode_answer, encode_result
from rft_data.placement.ray_handles import Reference, RemoteMethod, ray_module

log = logging.getLogger(__name__)


class RoleActor:
    """The class of the actor: makes a role and answers calls of its methods."""

    def __init__(self, setup: bytes, environment: Mapping[str, str], threads: int) -> None:
        """Make the role; `begin` returns the error if its factory raises one."""
        self._name = "a role"
        try:
            self._begin(RoleSetup.decode(setup), environment, threads)
            self._begun = encode_result(None)
        except RftError as err:
            self._begun = encode_failure(err)

    def _begin(self, made: RoleSetup, environment: Mapping[str, str], threads: int) -> None:
        self._name = made.name
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        for folder in own_folders(environment):  # beside those that its node was started with
            own_code_from(Path(folder))
        os.environ["OMP_NUM_THREADS"] = str(threads)
        mask_streams()
        sys.path += [entry for entry in made.path if entry not in sys.path]
        self._host = Host(made)

    def __repr__(self) -> str:
        """The prefix that Ray puts before each line of the actor's output."""
        return self._name

    async def begin(self) -> bytes:
        """The answer to START: None, or the error of the factory."""
        return self._begun

    async def answer(self, call: bytes) -> bytes:
        """Make a call; returns the answer, which may be an error."""
        return await self._host.answer(call)


class RoleHandle(Protocol):
    """Ray's handle of a `RoleActor`."""

    begin: RemoteMethod
    answer: RemoteMethod


class RayRole:
    """A role in an actor; safe to call from many threads.

    Callbacks of its futures run in the placement's thread: they must not wait for a role.
    """

    def __init__(
        self, name: str, make: Callable[[], RoleHandle], background: Background, patience: Patience
    ) -> None:
        """Start the actor. `make`: makes an actor, and returns its handle.

        Raises: what the factory raises, RoleDiedError, StalledError, BusyError.
        """
        self._name = name
        self._make = make
        self._background = background
        self._patience = patience
        self._actor: RoleHandle | None = None
        self.incarnation = 0
        self._begin()

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._name

    def call(self, method: str, returns: object, *, deadline_s: float, **arguments: object) -> Future[object]:
        """Call a method of the role in the actor; see `protocols.Role`."""
        awaited = Awaited(self.name, method, returns, deadline_s)
        try:
            if self._actor is None:
                raise RoleDiedError(f"role '{self.name}' has no actor; restart it.")
            answer = self._actor.answer.remote(encode_call(self.name, method, arguments))
        except RftError as err:
            awaited.failed(err)
            return awaited.future
        self._background.submit(awaited.watch, self._background.loop, "a Ray actor")
        answer.future().add_done_callback(lambda done: self._background.submit(self._settle, awaited, done))
        return awaited.future

    def restart(self) -> Future[None]:
        """Kill the actor, and start another from the same spec; see `protocols.Role`."""
        self._kill()
        self.incarnation += 1
        begun: Future[None] = Future()
        # Ray has no future for an actor that waits for resources: a thread waits instead of the caller
        waiter = threading.Thread(
            target=self._begin_again, args=(begun,), name=f"restart-{self.name}", daemon=True
        )
        waiter.start()
        return begun

    def _begin_again(self, begun: Future[None]) -> None:
        try:
            self._begin()
        except BaseException as err:  # noqa: BLE001 - errors of Ray too must reach the waiter
            begun.set_exception(err if isinstance(err, RftError) else self._role_error(err))
        else:
            begun.set_result(None)

    def close(self) -> None:
        """Ask the role to close, then kill the actor; idempotent."""
        close_all([self], self._patience.close_s)

    def ask_to_close(self) -> Reference | None:
        """Ask the role to close; returns a reference to its answer, or None if there is no actor."""
        return None if self._actor is None else self._actor.answer.remote(encode_call(self.name, CLOSE, {}))

    def end(self, asked: Reference) -> None:
        """Log a warning unless `asked` has the answer of a role that closed, then kill the actor."""
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
                    "start; its resources are in use, or its factory hangs: see `ray status` and its log."
                ) from err
            if isinstance(err, ray.exceptions.RayError):
                raise self._role_error(err) from err
            raise

    def _kill(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            _ray().kill(actor, no_restart=True)

    def _settle(self, awaited: Awaited, done: Future[bytes]) -> None:
        error = done.exception()
        if error is None:
            awaited.answered(done.result())
        else:
            awaited.failed(self._role_error(error))

    def _role_error(self, error: BaseException) -> RftError:
        """The RftError for an error of Ray."""
        if isinstance(error, _ray().exceptions.RayActorError):
            return RoleDiedError(
                f"role '{self.name}' (a Ray actor) is gone; restart it, or resume the run. "
                f"Ray reports: {error}"
            )
        return RftError(f"role '{self.name}' (a Ray actor) could not be called: {error}")


def close_all(roles: Sequence[RayRole], deadline_s: float) -> None:
    """Ask all roles to close, at the same time, wait for at most `deadline_s`, and kill their actors."""
    asked = [(role, answer) for role in roles if (answer := role.ask_to_close()) is not None]
    if asked:
        answers = [answer for _, answer in asked]
        _ray().wait(answers, num_returns=len(answers), timeout=deadline_s)
    for role, answer in asked:
        role.end(answer)


def _ray() -> ModuleType:
    return ray_module("a placement on Ray")
