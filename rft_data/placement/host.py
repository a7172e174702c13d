"""A role in its own process: makes the role, and answers calls of its methods in JSON.

How calls arrive is not decided here: `child.py` reads a socket, `ray_role.py` is called by Ray.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rft_data.core.errors import RftError, UnknownComponentError
from rft_data.core.lookup import load, suggest
from rft_data.core.masking import hide
from rft_data.placement.calls import (
    CLOSE,
    START,
    RoleSetup,
    bounded,
    decode_call,
    encode_failure,
    read_value,
)
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.wire import encode_result

if TYPE_CHECKING:
    from rft_data.placement.hub.client import HubClient


def make(name: str, factory: str, buffer: object, arguments: Mapping[str, object]) -> object:
    """Make a role: call its factory.

    Raises: the RftError that the factory raises; RftError too for any other exception.
    """
    try:
        return load(factory, "role factory")(buffer=buffer, **arguments)
    except RftError:
        raise
    except Exception as err:  # a factory is user code
        raise broken(name, START, err) from err


def public_method(name: str, role: object, method: str) -> Callable[..., object]:
    """The method `method` of a role.

    Raises: UnknownComponentError if there is none, or its name starts with an underscore.
    """
    found: object = None if method.startswith("_") else getattr(role, method, None)
    if not callable(found):
        known = [n for n in dir(role) if not n.startswith("_") and callable(getattr(role, n, None))]
        raise UnknownComponentError(
            f"role '{name}' has no method '{method}';{suggest(method, known)} it has {', '.join(known)}."
        )
    return found


def broken(name: str, method: str, error: BaseException) -> RftError:
    """The RftError for any other exception of a role; prints the traceback to stderr."""
    traceback.print_exception(error, file=sys.stderr)
    return RftError(
        f"role '{name}' failed in '{method}': {type(error).__name__}: {error}. "
        "The traceback is in its log (stderr)."
    )


@dataclass(frozen=True, slots=True)
class Typed:
    """A method of a role with the types of its arguments and result."""

    call: Callable[..., object]
    takes: Mapping[str, inspect.Parameter]
    gives: object

    @classmethod
    def of(cls, name: str, call: Callable[..., object]) -> Typed:
        """Read the annotations of a method of role `name`.

        Raises: RftError if one cannot be evaluated.
        """
        try:
            signature = inspect.signature(call, eval_str=True)
        except NameError as err:
            raise RftError(
                f"role '{name}': an annotation of '{call.__name__}' cannot be evaluated ({err}); "
                "import its types outside `if TYPE_CHECKING`."
            ) from err
        return cls(call, signature.parameters, _kind(signature.return_annotation))

    def read(self, name: str, given: Mapping[str, object]) -> dict[str, object]:
        """The arguments `given`, as the types that the method takes.

        Raises: RftError for one that is missing, unknown or of another type.
        """
        what = f"'{self.call.__name__}' of role '{name}'"
        needed = {n for n, p in self.takes.items() if p.default is p.empty}
        if wrong := sorted((needed - given.keys()) | (given.keys() - self.takes.keys())):
            raise RftError(f"{what} takes ({', '.join(self.takes)}); missing or unknown: {', '.join(wrong)}.")
        return {
            key: read_value(_kind(self.takes[key].annotation), value, f"argument '{key}' of {what}")
            for key, value in given.items()
        }


def _kind(annotation: object) -> object:
    return object if annotation is inspect.Parameter.empty else annotation


class Host:
    """A running role. Its coroutines run concurrently in the caller's event loop, the rest in one thread."""

    def __init__(self, setup: RoleSetup) -> None:
        """Make the role, with a client of the hub if there is one.

        Raises: what the factory raises (RftError).
        """
        self._name = setup.name
        hide(setup.hidden)
        self._client = _client(setup.hub)
        self._role = make(setup.name, setup.factory, self._client, setup.arguments)
        self._worker = ThreadPoolExecutor(1, f"role-{setup.name}")
        self._methods: dict[str, Typed] = {}
        self.closed = False

    async def answer(self, call: bytes) -> bytes:
        """Make a call; returns the answer, which may be an error."""
        method, given = decode_call(call)
        try:
            return await (self._close() if method == CLOSE else self._call(method, given))
        except RftError as err:
            return encode_failure(err)
        except (Exception, asyncio.CancelledError) as err:  # noqa: BLE001 - a role is user code
            return encode_failure(broken(self._name, method, err))

    async def _call(self, method: str, given: Mapping[str, object]) -> bytes:
        if method not in self._methods:
            self._methods[method] = Typed.of(self._name, public_method(self._name, self._role, method))
        typed = self._methods[method]
        values = typed.read(self._name, given)
        what = f"what role '{self._name}' returned from '{method}'"
        result = read_value(typed.gives, await self._run(typed.call, values), what)
        try:
            return bounded(encode_result(result), what)
        except ValueError as err:
            raise RftError(f"{what} cannot be written as JSON: {err}; rows go through the buffer.") from err

    async def _run(self, call: Callable[..., object], values: Mapping[str, object]) -> object:
        if inspect.iscoroutinefunction(call):
            return await call(**values)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, lambda: call(**values))

    async def _close(self) -> bytes:
        close = getattr(self._role, CLOSE, None)
        if not self.closed and close is not None:
            await self._run(close, {})
        if not self.closed and self._client is not None:
            self._client.close()
        self.closed = True
        self._worker.shutdown(wait=False)
        return encode_result(None)


def _client(hub: HubAccess | None) -> HubClient | None:
    if hub is None:
        return None
    from rft_data.placement.hub.client import HubClient  # only where there is a hub: it imports LanceDB

    return HubClient(hub.address, hub.token)
