"""One connection of a hub: checks its token, receives its calls under deadlines and shares, answers them.

`server.py` accepts connections, each in a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from rft_data.core.errors import BusyError, RftError, StalledError, TokenError
from rft_data.core.once import Once
from rft_data.core.words import HubRole
from rft_data.placement.hub import arrow_rows, wire
from rft_data.placement.hub.access import Holder, holder
from rft_data.placement.hub.buffer_calls import GIVING, Calls
from rft_data.placement.hub.frames import Channel, Kind
from rft_data.placement.hub.shares import Shares
from rft_data.placement.hub.turns import Turns
from rft_data.placement.hub.wire import Rows, decode_call, encode_error, encode_result

MAX_CONNECTIONS = 256
"""Connections of one client; each has a thread of the hub."""
RECEIVE_S = 60.0
"""Longest time for a call to arrive, once it has begun, and for a part of an answer to be taken."""
ROOM_S = 60.0
"""Longest wait of a call for the other calls of its client, before it is received."""
ANSWER_BYTES = 64 << 20
"""Share of a call that gives rows: what is read and what is sent of them at a time."""
_GREETING_S = 10.0
_DRAIN_S = 5.0
_TOKEN_BYTES = 4096
_JSON_COST = 16
"""Bytes of memory for each byte of JSON: small objects and lists take about so many."""
_FREE_JSON = 1 << 16
"""A call with less JSON takes no share for it."""
_log = logging.getLogger(__name__)


class Serving:
    """State that all connections of a hub share."""

    def __init__(self, calls: Calls, secret: str) -> None:
        """`secret`: the tokens of clients are made from it."""
        self.calls = calls
        self.shares = Shares()
        self.turns = Turns()
        self.closing = threading.Event()
        self._secret = secret
        self._lock = threading.Lock()
        self._connections: Counter[Holder] = Counter()

    def client(self, token: bytes) -> Holder:
        """The client that presents a token.

        Raises: TokenError for a wrong one.
        """
        found = holder(token.decode("utf-8", "replace"), self._secret)
        if found is None:
            raise TokenError("the hub refused the token; give the one that the run made for this client.")
        return found

    def connections(self, role: HubRole) -> int:
        """Connections of all clients of a role."""
        with self._lock:
            return sum(n for client, n in self._connections.items() if client.role == role)

    @contextmanager
    def connected(self, client: Holder) -> Iterator[None]:
        """Count a connection of a client for a `with` block.

        Raises: BusyError if it has MAX_CONNECTIONS.
        """
        with self._lock:
            if self._connections[client] >= MAX_CONNECTIONS:
                raise BusyError(
                    f"this client ({client.role} '{client.name}') has {MAX_CONNECTIONS} connections to the "
                    "hub, and may not have more; wait for calls of it to end, or give each process a token "
                    "of its own."
                )
            self._connections[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._connections[client] -= 1


class Served:
    """One connection."""

    def __init__(self, channel: Channel, serving: Serving) -> None:
        """Take over a channel that was just accepted."""
        self.channel = channel
        self.client: Holder | None = None
        """None until its token was checked."""
        self._serving = serving
        self._in_call = False

    def run(self) -> None:
        """Answer calls until the client closes the connection, breaks a rule of it, or the hub is closed."""
        try:
            self.channel.agree(_GREETING_S)
            head = self.channel.head({Kind.TOKEN: _TOKEN_BYTES}, _GREETING_S, _GREETING_S)
            client = self._serving.client(self.channel.body(head, _GREETING_S).to_pybytes())
            with self._serving.connected(client):
                self.client = client
                self._send(Kind.ANSWER, encode_result(None))
                while not self._serving.closing.is_set():
                    self._one_call(client)
        except RftError as err:
            self._refuse(err)
        except (OSError, EOFError) as err:
            if self._in_call:
                _log.warning("a client ended its connection before it was answered (%s)", err or "no reason")

    def _refuse(self, err: RftError) -> None:
        """Tell the client why its connection is closed."""
        _log.warning("the hub closes a connection: %s", err)
        try:
            self._send(Kind.ANSWER, encode_error(err))
            self.channel.drain(_DRAIN_S)
        except OSError:
            return

    def _one_call(self, client: Holder) -> None:
        """Receive a call and answer it.

        Raises: RftError when the connection cannot go on, since the rest of the call was not received.
        """
        self._in_call = False
        head = self.channel.head({Kind.CALL: wire.MAX_COMMAND_BYTES}, None, RECEIVE_S)
        self._in_call = True
        cost = head.size * _JSON_COST if head.size > _FREE_JSON else 0
        with self._serving.shares.taken(client, 0, cost, ROOM_S):
            call = self.channel.body(head, RECEIVE_S).to_pybytes()
            method, args, rows = decode_call(call)
            if rows is None:
                self._answered(client, method, args, None)
                return
        with _as_rft_error(method):
            client.check(method, args)
        head = self.channel.head({Kind.ROWS: wire.MAX_REQUEST_BYTES}, RECEIVE_S, RECEIVE_S)
        wire.check_request(rows, head.size)
        with self._serving.shares.taken(client, rows, head.size, ROOM_S):
            try:
                stream = self.channel.body(head, RECEIVE_S)
            except TimeoutError as err:
                raise StalledError(
                    f"the rows of hub call '{method}' did not arrive within {RECEIVE_S:g} s; nothing of it "
                    "is stored. Send it again."
                ) from err
            self._answered(client, method, args, (stream, rows))

    def _answered(
        self, client: Holder, method: str, args: dict[str, object], sent: tuple[pa.Buffer, int] | None
    ) -> None:
        """Make a call that has arrived, and send the answer; an error is an answer too."""
        size = ANSWER_BYTES if method in GIVING else 0
        try:
            with _as_rft_error(method):
                client.check(method, args)
            with self._serving.shares.taken(client, 0, size, ROOM_S):
                last = encode_result(self._result(method, args, sent))
        except RftError as err:
            last = encode_error(err)
        self._send(Kind.ANSWER, last)

    def _result(self, method: str, args: dict[str, object], sent: tuple[pa.Buffer, int] | None) -> object:
        """Make a call; send its result and return None if that is rows, else return it."""
        with _as_rft_error(method):
            result = self._serving.calls.answer(method, args, sent)
        if isinstance(result, Rows):
            self._send_rows(method, result)
            return None
        if isinstance(result, Once):  # held until it is sent, so that others share it
            self._serving.turns.send(self.channel, Kind.ROWS, result.value(), RECEIVE_S)
            return None
        return result

    def _send_rows(self, method: str, result: Rows) -> None:
        parts = arrow_rows.parts(result.schema, result.batches)
        while True:
            if self._serving.closing.is_set():
                raise StalledError("the hub was closed in the middle of an answer; ask again.")
            with _as_rft_error(method):
                part = next(parts, None)
            if part is None:
                return
            self._send(Kind.ROWS, arrow_rows.encoded(part))

    def _send(self, kind: Kind, content: bytes | pa.Buffer) -> None:
        self.channel.send(kind, content, RECEIVE_S)


@contextmanager
def _as_rft_error(method: str) -> Iterator[None]:
    """Raise any other error as RftError: the client gets only its class, the hub's log has the traceback."""
    try:
        yield
    except RftError:
        raise
    except BaseException as err:  # a Rust panic is no Exception
        _log.exception("hub call '%s' failed", method)
        raise RftError(
            f"hub call '{method}' failed with {type(err).__name__}; the hub's log has the traceback."
        ) from err
