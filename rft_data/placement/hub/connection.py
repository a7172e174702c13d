"""The client's side of a connection: sends a call again while the hub cannot be reached, until its deadline.

Every call of the hub may be sent twice (see docs/hub.md), so a call without an answer is sent again.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from rft_data.core.errors import RftError, StalledError, TokenError
from rft_data.placement.hub.address import parse_address
from rft_data.placement.hub.arrow_rows import decoded, encoded
from rft_data.placement.hub.frames import Channel, Kind
from rft_data.placement.hub.tls import OtherCertificateError, connected
from rft_data.placement.hub.wire import check_request, decode_answer, encode_call

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_GRACE_S = 0.5
"""Extra time after the deadline for an error of the hub itself: it tells why the hub is late."""
_CONNECT_S = 10.0
"""Longest try to connect: a network that was cut does not tell."""
_IDLE = 8
"""Connections that are kept open between calls."""
_ANSWERS = {Kind.ROWS: 1 << 40, Kind.ANSWER: 1 << 40}
"""Most bytes of each kind of answer; the client trusts the hub about sizes."""

T = TypeVar("T")
Args = Mapping[str, object]
Exchange = Generator[pa.RecordBatch, None, Any]
Locate = Callable[[float], tuple[str, str] | None]
"""Given the seconds it may take: (address, token) of the hub now, or None if it is not known."""


class LostError(Exception):
    """The hub cannot be reached, or the connection broke; the call is made again."""


class RefusedError(TokenError):
    """The hub did not take the client's token."""


class _Hub:
    """Last known address of the hub, and the connections to it that are idle."""

    def __init__(self, address: str, token: str) -> None:
        """Raises: RecipeError for an address that is none, or another machine's without a digest."""
        self.address = address
        self.token = token
        self._place = parse_address(address)
        self._idle: list[Channel] = []
        self._lock = threading.Lock()
        self._closed = False

    def channel(self, end: float) -> Channel:
        """A connection whose token the hub has taken, for one call, made before `end`.

        Raises: LostError; RefusedError if the hub refuses the token; BusyError if it takes no more of them.
        """
        with self._lock:
            if self._closed:
                raise RftError(f"the client of hub {self.address} is closed; make another one.")
            if self._idle:
                return self._idle.pop()
        try:
            channel = Channel(self._connected(min(_CONNECT_S, max(0.001, end - time.monotonic()))))
        except OtherCertificateError as err:
            raise RefusedError(str(err)) from err
        except OSError as err:
            raise LostError(str(err)) from err
        try:
            channel.send(Kind.TOKEN, self.token.encode(), end - time.monotonic())
            answer = _received(channel, end)[1]
        except (OSError, EOFError) as err:
            channel.close()
            raise LostError(str(err)) from err
        try:
            decode_answer(answer.to_pybytes())
        except TokenError as err:
            channel.close()
            raise RefusedError(
                f"hub {self.address} refused the token of this client; give one that is made from the "
                "secret of this hub (`rft token`)."
            ) from err
        return channel

    def _connected(self, within_s: float) -> socket.socket:
        """A new connection. Raises: OSError; OtherCertificateError when another hub answers."""
        place = (self._place.host, self._place.port)
        if self._place.digest is None:
            return socket.create_connection(place, within_s)
        return connected(place, self._place.digest, within_s)

    def answered(self, channel: Channel, answer: pa.Buffer) -> Any:
        """The result of a call; its connection is kept for the next one, unless the answer is an error.

        Raises: the error, if the answer is one.
        """
        try:
            result = decode_answer(answer.to_pybytes())
        except RftError:
            channel.close()  # the hub may have given it up
            raise
        with self._lock:
            kept = not self._closed and len(self._idle) < _IDLE
            if kept:
                self._idle.append(channel)
        if not kept:
            channel.close()
        return result

    def close(self) -> None:
        """Close the idle connections; the others are closed after their call. Idempotent."""
        with self._lock:
            self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the connections that no call uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()


class Connection:
    """Calls to one hub; safe to use from many threads."""

    def __init__(self, address: str, token: str, locate: Locate | None) -> None:
        """`locate` is asked again whenever the hub cannot be reached or refuses the token."""
        self._locate = locate
        self._lock = threading.Lock()
        self._hub = _Hub(address, token)

    @property
    def address(self) -> str:
        """The last known address of the hub."""
        return self._hub.address

    @property
    def token(self) -> str:
        """The token of this client."""
        return self._hub.token

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._hub.close()

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
        except LostError as err:
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
            except RefusedError as err:
                if self._locate is None:
                    raise
                failure: Exception = err
            except LostError as err:
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
                self._hub.drop_idle()
                self._hub = _Hub(*found)

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
        call = encode_call(method, args, None if table is None else table.num_rows)
        if table is not None:
            check_request(table.num_rows, table.nbytes)
        end, hub = time.monotonic() + left + _GRACE_S, self._hub
        channel = hub.channel(end)
        try:
            channel.send(Kind.CALL, call, end - time.monotonic())
            if table is not None:
                _send_rows(channel, table, end)
            while (frame := _received(channel, end))[0] != Kind.ANSWER:
                yield from decoded(frame[1])
        except (OSError, EOFError) as err:
            channel.close()
            hub.drop_idle()  # they lead to the same hub
            raise LostError(str(err)) from err
        except BaseException:
            channel.close()
            raise
        return hub.answered(channel, frame[1])


def _received(channel: Channel, end: float) -> tuple[Kind, pa.Buffer]:
    left = end - time.monotonic()
    head = channel.head(_ANSWERS, left, left)
    return head.kind, channel.body(head, end - time.monotonic())


def _send_rows(channel: Channel, table: pa.Table, end: float) -> None:
    try:
        channel.send(Kind.ROWS, encoded(table), end - time.monotonic())
    except ConnectionError:
        return  # the hub refused the call and said why: the answer is there to be read
