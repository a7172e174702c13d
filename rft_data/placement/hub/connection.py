"""The client's side of a connection: sends a call again while the hub cannot be reached, until its deadline.

Every call of the hub may be sent twice (see docs/hub.md), so a call without an answer is sent again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from rft_data.core.codec import aligned
from rft_data.core.errors import StalledError
from rft_data.placement.hub.wire import (
    TokenError,
    authorization,
    check_size,
    decode_answer,
    encode_call,
    message_batches,
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_GRACE_S = 0.5
"""Extra time after the deadline for an error of the hub itself: it tells why the hub is late."""
_CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),  # else the clients of one process share one back-off
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),  # gRPC's default of 120 s is longer than our deadlines
]
_UNREACHABLE = (flight.FlightUnavailableError, flight.FlightInternalError, flight.FlightCancelledError)

T = TypeVar("T")
Args = Mapping[str, object]
Exchange = Generator[pa.RecordBatch, None, Any]
Locate = Callable[[float], tuple[str, str] | None]
"""Given the seconds it may take: (address, token) of the hub now, or None if it is not known."""


@dataclass(frozen=True)
class _Hub:
    """Where the hub was last found."""

    address: str
    token: str = field(repr=False)
    client: flight.FlightClient

    @classmethod
    def of(cls, address: str, token: str) -> _Hub:
        return cls(address, token, flight.FlightClient(address, generic_options=_CHANNEL))


class Connection:
    """Calls to one hub; safe to use from many threads."""

    def __init__(self, address: str, token: str, locate: Locate | None) -> None:
        """`locate` is asked again whenever the hub cannot be reached or refuses the token."""
        self._locate = locate
        self._lock = threading.Lock()
        self._hub = _Hub.of(address, token)

    @property
    def address(self) -> str:
        """The last known address of the hub."""
        return self._hub.address

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._hub.client.close()

    def call(self, method: str, args: Args, table: pa.Table | None = None, *, deadline_s: float) -> Any:
        """Make a call whose result is a JSON value.

        Raises: StalledError without an answer within `deadline_s`; TokenError; whatever the call raises.
        """
        return self._repeat(method, lambda left: self._collect(method, args, table, left)[0], deadline_s)

    def rows(self, method: str, args: Args, *, deadline_s: float) -> pa.Table:
        """Make a call whose result is rows. Raises: as `call`."""
        batches = self._repeat(method, lambda left: self._collect(method, args, None, left)[1], deadline_s)
        return pa.Table.from_batches(batches)

    def stream(self, method: str, args: Args, *, deadline_s: float) -> Iterator[pa.RecordBatch]:
        """The same, batch by batch; `deadline_s` is for the whole of it.

        Raises: as `call`; StalledError if the connection is lost after the first batch.
        """

        def begin(left: float) -> tuple[pa.RecordBatch | None, Exchange]:
            exchange = self._exchange(method, args, None, left)
            return next(exchange, None), exchange

        first, rest = self._repeat(method, begin, deadline_s)
        if first is not None:
            yield first
        try:
            yield from rest
        except flight.FlightError as err:
            raise StalledError(
                f"the connection to hub {self.address} broke, or {deadline_s:g} s were over, in the "
                f"middle of '{method}'; "
                "ask again for the rows that are missing."
            ) from err

    def _repeat(self, method: str, attempt: Callable[[float], T], deadline_s: float) -> T:
        """Repeat `attempt(seconds left)` until it has an answer or the deadline has passed."""
        end = time.monotonic() + deadline_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return attempt(max(0.0, end - time.monotonic()))
            except flight.FlightUnauthenticatedError as err:
                if self._locate is None:
                    raise TokenError(
                        f"hub {self.address} refused the token of this client; "
                        "give the token that the hub was started with."
                    ) from err
                failure: flight.FlightError = err
            except (*_UNREACHABLE, flight.FlightTimedOutError) as err:
                failure = err
            left = end - time.monotonic()
            if left <= 0:
                raise StalledError(
                    f"hub {self.address} gave no answer to '{method}' within {deadline_s:g} s. It may have "
                    "been carried out or not; call again when the hub runs: nothing is done twice."
                ) from failure
            time.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._find(end - time.monotonic())

    def _find(self, left: float) -> None:
        """Ask `locate` for the hub's present address and token."""
        found = None if self._locate is None else self._locate(left)
        with self._lock:
            if found is not None and found != (self._hub.address, self._hub.token):
                self._hub = _Hub.of(*found)  # the old one may still be in use by another thread

    def _collect(
        self, method: str, args: Args, table: pa.Table | None, left: float
    ) -> tuple[Any, list[pa.RecordBatch]]:
        exchange = self._exchange(method, args, table, left)
        batches = []
        while True:
            try:
                batches.append(next(exchange))
            except StopIteration as done:
                return done.value, batches

    def _exchange(self, method: str, args: Args, table: pa.Table | None, left: float) -> Exchange:
        """One attempt: yields the rows of the answer, returns its result."""
        call, hub = encode_call(method, args, 0 if table is None else table.num_rows), self._hub
        options = flight.FlightCallOptions(
            timeout=left + _GRACE_S, headers=[(b"authorization", authorization(hub.token).encode())]
        )
        writer, reader = hub.client.do_exchange(flight.FlightDescriptor.for_command(call), options)
        try:
            _send(writer, table)
            while True:
                chunk = reader.read_chunk()
                if chunk.data is None:
                    return decode_answer(chunk.app_metadata.to_pybytes())
                yield aligned(chunk.data)
        except StopIteration:
            raise flight.FlightUnavailableError("the hub closed the connection before it answered") from None
        finally:
            reader.cancel()
            with suppress(flight.FlightError, pa.ArrowException):
                writer.close()


def _send(writer: flight.FlightStreamWriter, table: pa.Table | None) -> None:
    if table is None:
        writer.write_metadata(b"")
    else:
        check_size(table.nbytes)
        writer.begin(table.schema)
        try:
            for part in message_batches(table.schema, table.to_batches()):
                writer.write_batch(part)
        except pa.ArrowInvalid as err:  # 'Destination already closed'
            raise flight.FlightUnavailableError(str(err)) from err
    writer.done_writing()
