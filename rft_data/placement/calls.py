"""What crosses between a caller and a role elsewhere: one JSON text per call, one per answer.

Values are checked against types at both ends, so that nothing but plain values passes. Rows do not pass
here: they go through the hub.
"""

from __future__ import annotations

import asyncio
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

from rft_data.core.errors import RftError, StalledError
from rft_data.core.protocols import RoleSpec
from rft_data.placement.hub.wire import ERRORS, decode_answer, encode_error

START, CLOSE = "(start)", "close"
"""Methods every role has: START is its factory."""
MAX_BYTES = 256 << 20
"""Of one call, and of one answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a placement waits for a role, in seconds."""

    start_s: float = 600.0
    """For its factory to return: a large model is being read."""
    place_s: float = 300.0
    """For a cluster to have room."""
    close_s: float = 30.0
    """For it to close as asked, before it is terminated."""
    silent_s: float = 60.0
    """For a sign of life of its process, before it is killed."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What a process needs to make its role; it may hold secrets, so it goes over a private channel."""

    name: str
    factory: str
    arguments: dict[str, Any]
    hub: tuple[str, str] | None
    """(address, token), or None for roles without a buffer."""
    path: list[str]
    """`sys.path` of the run."""

    @classmethod
    def of(cls, spec: RoleSpec, hub: tuple[str, str] | None) -> Birth:
        """The birth of `spec`.

        Raises: RftError if an argument is no JSON value.
        """
        path = [str(Path(entry).absolute()) for entry in sys.path]  # an empty entry is the working directory
        return cls(spec.name, spec.factory, plain_arguments(spec), hub, path)

    @classmethod
    def read(cls, written: bytes) -> Birth:
        """What `written` wrote."""
        return TypeAdapter(cls).validate_json(written)

    def written(self) -> bytes:
        """As bytes."""
        return bytes(to_json(self))


def plain_arguments(spec: RoleSpec) -> dict[str, Any]:
    """A factory's arguments as the JSON values that it is given in every placement.

    Raises: RftError if one is no JSON value.
    """
    _, values = decode_call(encode_call(spec.name, START, spec.arguments))
    return values


def encode_call(role: str, method: str, arguments: Mapping[str, Any]) -> bytes:
    """A call of a role's method.

    Raises: RftError if an argument cannot be written as JSON, or all are too large together.
    """
    try:
        call = bytes(to_json({"method": method, "arguments": arguments}))
    except ValueError as err:
        raise RftError(
            f"an argument of '{method}' for role '{role}' cannot be written as JSON: {err}; "
            "pass plain values and dataclasses, and rows through the buffer."
        ) from err
    return bounded(call, f"a call of '{method}' of role '{role}'")


def decode_call(call: bytes) -> tuple[str, dict[str, Any]]:
    """(method, arguments) of a call."""
    parsed = from_json(call)
    return parsed["method"], parsed["arguments"]


def bounded(content: bytes, what: str) -> bytes:
    """`content`, if it is not too large.

    Raises: RftError.
    """
    if len(content) > MAX_BYTES:
        raise RftError(
            f"{what} has {len(content)} bytes; at most {MAX_BYTES} pass. Bring rows through the buffer, "
            "and ask for less at a time."
        )
    return content


def encode_failure(error: RftError) -> bytes:
    """The answer that brings an error: of its own class, or of the nearest one that every process knows."""
    kind = next(c for c in type(error).__mro__ if c.__name__ in ERRORS)
    message = str(error).encode("utf-8", "backslashreplace").decode()  # a file's name may hold anything
    return encode_error(ERRORS[kind.__name__](message))


@lru_cache(maxsize=256)
def reader_of(kind: Any) -> TypeAdapter[Any]:
    """What reads values of a type.

    Raises: RftError if values of it cannot be read from JSON.
    """
    try:
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError) as err:
        raise RftError(
            f"values of type {kind} cannot pass between processes; use plain values and dataclasses."
        ) from err


def read_value(kind: Any, value: Any, what: str) -> Any:
    """`value` as `kind`.

    Raises: RftError if it is none; `what` names it.
    """
    try:
        return reader_of(kind).validate_python(value)
    except ValidationError as err:
        wrong = [": ".join((*map(str, e["loc"]), e["msg"])) for e in err.errors(include_url=False)[:3]]
        raise RftError(f"{what} is not {_name(kind)}: {'; '.join(wrong)}.") from err


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)


@dataclass(slots=True)
class Awaited:
    """A call under way: its future is settled once, in the thread of `loop`."""

    role: str
    method: str
    returns: Any
    deadline_s: float
    future: Future[Any] = field(default_factory=Future)

    def __post_init__(self) -> None:
        """Nobody may cancel it: the role would not know."""
        self.future.set_running_or_notify_cancel()

    def watch(self, loop: asyncio.AbstractEventLoop, where: str) -> None:
        """Let it fail when its deadline has passed; called in the loop's thread.

        `where`: the role's process.
        """
        timer = loop.call_later(self.deadline_s, self._stalled, where)
        self.future.add_done_callback(lambda _: timer.cancel())

    def answered(self, answer: bytes) -> None:
        """Settle it with what the role said."""
        try:
            value = decode_answer(answer)
            told = read_value(self.returns, value, f"what role '{self.role}' returned from '{self.method}'")
        except RftError as err:
            self.failed(err)
        else:
            if not self.future.done():
                self.future.set_result(told)

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
