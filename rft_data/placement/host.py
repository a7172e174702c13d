"""A role in the process where it lives: makes it, and answers calls of its methods in JSON.

Which process that is, and how calls travel, is not known here.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rft_data.core.errors import RftError, UnknownComponentError
from rft_data.core.lookup import load, suggest
from rft_data.placement.calls import CLOSE, START, Birth, bounded, decode_call, encode_failure, read_value
from rft_data.placement.hub.wire import encode_result


def make(name: str, factory: str, buffer: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a role's factory.

    Raises: what it raises, as RftError where it is not one of ours.
    """
    try:
        return load(factory, "role factory")(buffer=buffer, **arguments)
    except RftError:
        raise
    except Exception as err:  # the edge of user code
        raise broken(name, START, err) from err


def method_of(name: str, role: object, method: str) -> Callable[..., Any]:
    """A public method of a role.

    Raises: UnknownComponentError.
    """
    found = None if method.startswith("_") else getattr(role, method, None)
    if not callable(found):
        known = [n for n in dir(role) if not n.startswith("_") and callable(getattr(role, n, None))]
        raise UnknownComponentError(
            f"role '{name}' has no method '{method}';{suggest(method, known)} it has {', '.join(known)}."
        )
    return found  # type: ignore[no-any-return]


def broken(name: str, method: str, error: BaseException) -> RftError:
    """An error that is not one of ours as one of ours; its traceback goes to stderr."""
    traceback.print_exception(error, file=sys.stderr)
    return RftError(
        f"role '{name}' failed in '{method}': {type(error).__name__}: {error}. "
        "The traceback is in its log (stderr)."
    )


@dataclass(frozen=True, slots=True)
class Typed:
    """A method with the types it takes and gives."""

    call: Callable[..., Any]
    takes: Mapping[str, inspect.Parameter]
    gives: Any

    @classmethod
    def of(cls, name: str, call: Callable[..., Any]) -> Typed:
        """Read a method's annotations.

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

    def read(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as the types the method takes.

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


def _kind(annotation: Any) -> Any:
    return Any if annotation is inspect.Parameter.empty else annotation


class Host:
    """A live role; its coroutines run beside each other in the caller's loop, the rest in one thread."""

    def __init__(self, birth: Birth) -> None:
        """Make the role, with a client of the hub if there is one.

        Raises: what the factory raises (RftError).
        """
        self._name = birth.name
        self._client = _client(birth.hub)
        self._role = make(birth.name, birth.factory, self._client, birth.arguments)
        self._worker = ThreadPoolExecutor(1, f"role-{birth.name}")
        self._methods: dict[str, Typed] = {}
        self.closed = False

    async def answer(self, call: bytes) -> bytes:
        """Make a call; returns the answer, which may be an error."""
        method, given = decode_call(call)
        try:
            return await (self._close() if method == CLOSE else self._call(method, given))
        except RftError as err:
            return encode_failure(err)
        except (Exception, asyncio.CancelledError) as err:  # noqa: BLE001 - the edge of user code
            return encode_failure(broken(self._name, method, err))

    async def _call(self, method: str, given: Mapping[str, Any]) -> bytes:
        if method not in self._methods:
            self._methods[method] = Typed.of(self._name, method_of(self._name, self._role, method))
        typed = self._methods[method]
        values = typed.read(self._name, given)
        what = f"what role '{self._name}' returned from '{method}'"
        result = read_value(typed.gives, await self._run(typed.call, values), what)
        try:
            return bounded(encode_result(result), what)
        except ValueError as err:
            raise RftError(f"{what} cannot be written as JSON: {err}; rows go through the buffer.") from err

    async def _run(self, call: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(call):
            return await call(**values)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, lambda: call(**values))

    async def _close(self) -> bytes:
        if not self.closed and hasattr(self._role, CLOSE):
            await self._run(self._role.close, {})
        if not self.closed and self._client is not None:
            self._client.close()
        self.closed = True
        self._worker.shutdown(wait=False)
        return encode_result(None)


def _client(hub: tuple[str, str] | None) -> Any:
    if hub is None:
        return None
    from rft_data.placement.hub.client import HubClient  # opens nothing yet, but brings LanceDB in

    return HubClient(*hub)
