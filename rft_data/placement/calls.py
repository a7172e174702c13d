"""Messages between a caller and a role in another process: one JSON text per call, one per answer.

Both ends check values against types, so only plain values pass. Rows are not sent this way: they go
through the hub.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import from_json, to_json

from rft_data.core.errors import MissingExtraError, RftError, StalledError
from rft_data.core.masking import hidden_values
from rft_data.core.roles import RoleSpec
from rft_data.core.version import __version__
from rft_data.placement.hub.access import HubAccess, narrowed
from rft_data.placement.hub.wire import ERRORS, decode_answer, encode_error

START, CLOSE = "(start)", "close"
"""Methods of every role: START calls its factory."""
OWN_PYTHONPATH = "RFT_ROLE_PYTHONPATH"
"""Variable of a role's process: what PYTHONPATH is for the programs that the role starts."""
MAX_BYTES = 256 << 20
"""Largest size of one call, and of one answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a placement waits for a role, in seconds."""

    start_s: float = 600.0
    """For its factory to return: it may read a large model."""
    place_s: float = 300.0
    """For free resources in a cluster."""
    nodes_s: float = 0.0
    """For nodes that a cluster does not have yet; 0: what its nodes cannot hold is refused at once."""
    close_s: float = 30.0
    """For it to close when asked, before it is terminated."""
    silent_s: float = 60.0
    """For a message from its process, before the process is killed."""


@dataclass(frozen=True, slots=True)
class RoleSetup:
    """Arguments from which a process makes its role; they may hold secrets, so their channel is private."""

    name: str
    factory: str
    arguments: dict[str, object]
    hub: HubAccess | None
    """With a token of this role; None for roles without a buffer."""
    path: list[str]
    """`sys.path` of the run."""
    hidden: dict[str, str]
    """`rft_data.core.masking.hidden_values` of the run."""
    version: str = __version__
    """Of rft-data, where the run was started."""

    @classmethod
    def of(cls, spec: RoleSpec, hub: HubAccess | None) -> RoleSetup:
        """The setup of `spec`.

        `hub`: with the secret, from which the role gets a token of its own; or a client's token.
        Raises: RftError if an argument is not a JSON value.
        """
        path = [str(Path(entry).absolute()) for entry in sys.path]  # an empty entry is the working directory
        its_hub = (
            None if hub is None else HubAccess(hub.address, narrowed(hub.token, spec.hub_role, spec.name))
        )
        return cls(spec.name, spec.factory, plain_arguments(spec), its_hub, path, dict(hidden_values()))

    @classmethod
    def decode(cls, encoded: bytes) -> RoleSetup:
        """Inverse of `encode`.

        Raises: MissingExtraError where this process has another version of rft-data than the run.
        """
        given = from_json(encoded)
        if (version := given.get("version")) != __version__:
            raise MissingExtraError(
                f"role '{given['name']}' was started on {socket.gethostname()}, which has rft-data "
                f"{__version__}, and the run is of {version}; install the same version on every node."
            )
        return TypeAdapter(cls).validate_python(given)

    def encode(self) -> bytes:
        """The setup as JSON."""
        return bytes(to_json(self))


def plain_arguments(spec: RoleSpec) -> dict[str, object]:
    """The arguments of a factory as JSON values, the same in every placement.

    Raises: RftError if one is not a JSON value.
    """
    _, values = decode_call(encode_call(spec.name, START, spec.arguments))
    return values


def encode_call(role: str, method: str, arguments: Mapping[str, object]) -> bytes:
    """A call of a role's method, as JSON.

    Raises: RftError if an argument cannot be written as JSON, or the call is larger than MAX_BYTES.
    """
    try:
        call = bytes(to_json({"method": method, "arguments": arguments}))
    except ValueError as err:
        raise RftError(
            f"an argument of '{method}' for role '{role}' cannot be written as JSON: {err}; "
            "pass plain values and dataclasses, and rows through the buffer."
        ) from err
    return bounded(call, f"a call of '{method}' of role '{role}'")


def decode_call(call: bytes) -> tuple[str, dict[str, object]]:
    """(method, arguments) of a call."""
    parsed = from_json(call)
    return parsed["method"], parsed["arguments"]


def bounded(content: bytes, what: str) -> bytes:
    """Return `content`; `what` names it in the error.

    Raises: RftError if it has more than MAX_BYTES.
    """
    if len(content) > MAX_BYTES:
        raise RftError(
            f"{what} has {len(content)} bytes; at most {MAX_BYTES} pass. Send rows through the buffer, "
            "and ask for less at a time."
        )
    return content


def encode_failure(error: RftError) -> bytes:
    """The answer for an error: its class, or the nearest base class in ERRORS, which every process has."""
    kind = next(c for c in type(error).__mro__ if c.__name__ in ERRORS)
    message = str(error).encode("utf-8", "backslashreplace").decode()  # file names may not be UTF-8
    return encode_error(ERRORS[kind.__name__](message))


@lru_cache(maxsize=256)
def value_reader(kind: Any) -> TypeAdapter[object]:
    """The adapter that reads values of a type.

    Raises: RftError if values of it cannot be read from JSON.
    """
    try:
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError) as err:
        raise RftError(
            f"values of type {kind} cannot pass between processes; use plain values and dataclasses."
        ) from err


def read_value(kind: object, value: object, what: str) -> object:
    """`value` as type `kind`; `what` names it in the error.

    Raises: RftError if it is not of that type.
    """
    try:
        return value_reader(kind).validate_python(value)
    except ValidationError as err:
        wrong = [": ".join((*map(str, e["loc"]), e["msg"])) for e in err.errors(include_url=False)[:3]]
        raise RftError(f"{what} is not {_name(kind)}: {'; '.join(wrong)}.") from err


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)


@dataclass(slots=True)
class Awaited:
    """A call without an answer yet; its future is settled once, in the thread of the event loop."""

    role: str
    method: str
    returns: object
    """The type that the result is read as."""
    deadline_s: float
    future: Future[object] = field(default_factory=Future)

    def __post_init__(self) -> None:
        """Mark the future as running, so that a caller cannot cancel it: the role would not learn of it."""
        self.future.set_running_or_notify_cancel()

    def watch(self, loop: asyncio.AbstractEventLoop, where: str) -> None:
        """Make it fail when its deadline has passed; called in the thread of `loop`.

        `where`: the role's process, for the error.
        """
        timer = loop.call_later(self.deadline_s, self._stalled, where)
        self.future.add_done_callback(lambda _: timer.cancel())

    def answered(self, answer: bytes) -> None:
        """Settle it with the role's answer."""
        try:
            value = decode_answer(answer)
            result = read_value(self.returns, value, f"what role '{self.role}' returned from '{self.method}'")
        except RftError as err:
            self.failed(err)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def failed(self, error: BaseException) -> None:
        """Settle it with an error."""
        if not self.future.done():
            self.future.set_exception(error)

    def _stalled(self, where: str) -> None:
        self.failed(
            StalledError(
                f"the run waited {self.deadline_s:g} s for role '{self.role}' ({where}) to answer "
                f"'{self.method}', and it is still busy with it; restart the role, or allow it more time."
            )
        )
