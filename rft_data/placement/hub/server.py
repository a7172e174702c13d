"""Serves a buffer and its ledgers to other processes, over Arrow Flight on loopback unless told otherwise.

Every call needs the run's token. The connection is not encrypted: on a network, use a private one.
What the calls do is `buffer_calls.py`'s business.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from rft_data.buffer import Buffer
from rft_data.core.codec import aligned
from rft_data.core.errors import BusyError, RftError, StalledError
from rft_data.placement.hub.buffer_calls import Calls
from rft_data.placement.hub.wire import (
    LedgerOf,
    Rows,
    authorization,
    check_form,
    check_size,
    decode_call,
    encode_error,
    encode_result,
    messages_of,
)
from rft_data.sampler.ledger import Ledger

MAX_BRINGING = 64
"""Calls with rows that are received at a time: with the size of one call, the bound on memory."""
BRINGING_DEADLINE_S = 60.0
STOP_S = 10.0
"""How long `close` waits for calls that are under way."""
_log = logging.getLogger(__name__)


class HubServer:
    """One buffer, served. Several may serve different buffers in one process."""

    def __init__(
        self, buffer: Buffer, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        """Prepare to serve `buffer`, which stays the caller's to close (after the hub).

        `port`: 0 takes any free one. `token`: None makes a random one.
        """
        self._calls = Calls(buffer)
        self._host, self._port = host, port
        self.token = token or secrets.token_urlsafe(32)
        self._flight: Any = None

    @property
    def address(self) -> str:
        """Where clients find it.

        Raises: RftError before `start`.
        """
        if self._flight is None:
            raise RftError("the hub has no address before it is started; call start().")
        return f"grpc://{self._host}:{self._flight.port}"

    def ledger(self, run_id: str, attempt: int, *, max_uses: int = 1) -> Ledger:
        """The ledger that clients of this run use: parts in this process must share it, not make their own.

        Raises: ConflictError if it is open with another `max_uses`.
        """
        return self._calls.books.ledger(LedgerOf(run_id, attempt, max_uses))

    def start(self) -> HubServer:
        """Accept calls from now on; idempotent.

        Raises: BusyError if the port is taken.
        """
        if self._flight is None:
            try:
                self._flight = _Flight(self._calls, f"grpc://{self._host}:{self._port}", self.token)
            except (pa.ArrowException, OSError) as err:
                raise BusyError(
                    f"the hub cannot listen on {self._host}:{self._port}; another process may have the port. "
                    "Choose another one, or 0 for any."
                ) from err
        return self

    def close(self) -> None:
        """Answer what is under way, for at most STOP_S, and stop; idempotent."""
        if self._flight is None:
            return
        self._flight.closing.set()
        stopping = threading.Thread(target=self._flight.shutdown, name="hub-stop", daemon=True)
        stopping.start()  # Flight's own shutdown waits as long as a client that stopped reading
        stopping.join(STOP_S)
        self._flight = None

    def __enter__(self) -> HubServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's side: receives a call, answers it."""

    def __init__(self, calls: Calls, location: str, token: str) -> None:
        self._calls = calls
        self._bringing = threading.BoundedSemaphore(MAX_BRINGING)
        self.closing = threading.Event()
        super().__init__(location, middleware={"token": _TokenCheck(token)})

    def do_exchange(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One call; whatever goes wrong is an answer too."""
        brought = _Brought(reader)
        try:
            try:
                last = self._answer(descriptor.command or b"", brought, writer)
            except RftError as err:
                last = encode_error(err)
            brought.discard()  # a client that is still sending would not get the answer
            writer.write_metadata(last)
        except pa.ArrowException:
            _log.warning("a client went away before it was answered")

    def _answer(self, call: bytes, brought: _Brought, writer: Any) -> bytes:
        """Write the rows of the answer, return its JSON."""
        method, args, rows = decode_call(call)
        with _confined(method):
            if self._calls.brings_rows(method):
                result = self._with_rows(method, args, rows, brought)
            else:
                result = self._calls.answer(method, args)
            if not isinstance(result, Rows):
                return encode_result(result)
        brought.discard()
        writer.begin(result.schema)
        parts = messages_of(result.schema, result.batches)
        while (part := self._next(method, parts)) is not None:
            writer.write_batch(part)
        return encode_result(None)

    def _next(self, method: str, parts: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        if self.closing.is_set():
            raise StalledError("the hub was closed in the middle of an answer; ask again.")
        with _confined(method):
            return next(parts, None)

    def _with_rows(self, method: str, args: dict[str, Any], rows: int, brought: _Brought) -> Any:
        """Receive the rows, a bounded number of calls at a time, and answer.

        Raises: StalledError if too many others are being received.
        """
        if not self._bringing.acquire(timeout=BRINGING_DEADLINE_S):
            raise StalledError(
                f"the hub was receiving {MAX_BRINGING} other calls with rows for {BRINGING_DEADLINE_S:g} s; "
                "nothing of this one is stored. Send it again."
            )
        try:
            return self._calls.answer(method, args, brought.table(rows))
        finally:
            self._bringing.release()


@contextmanager
def _confined(method: str) -> Iterator[None]:
    """Let our errors pass; of any other one the caller learns the class only, the hub's log the rest."""
    try:
        yield
    except RftError:
        raise
    except BaseException as err:  # a Rust panic is no Exception
        _log.exception("hub call '%s' failed", method)
        raise RftError(
            f"hub call '{method}' failed with {type(err).__name__}; the hub's log says why."
        ) from err


class _Brought:
    """What a client sends along with a call."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._ended = False

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while not self._ended:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                self._ended = True
                break
            if chunk.data is not None:
                yield chunk.data

    def table(self, rows: int) -> pa.Table:
        """The rows, `rows` in number.

        Raises: RowError if they are too many bytes, or not well formed; StalledError if some are missing.
        """
        batches, size = list[pa.RecordBatch](), 0
        for batch in self._batches():
            size += batch.nbytes
            check_size(size)
            batches.append(aligned(batch))
        table = pa.Table.from_batches(batches) if batches else pa.table({})
        if table.num_rows != rows:  # to Flight a client that dies while sending is one that has sent all
            raise StalledError(
                f"{table.num_rows} of {rows} rows of a hub call arrived; nothing of it is stored. "
                "Send it again."
            )
        check_form(table)
        return table

    def discard(self) -> None:
        """Read what is left, so that the client comes to listen."""
        for _ in self._batches():
            pass


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses a call before anything of it is read, unless it has the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = authorization(token).encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Flight's hook at the start of every call."""
        found = "".join(headers.get("authorization", [])).encode()
        if not hmac.compare_digest(found, self._wanted):
            raise flight.FlightUnauthenticatedError("wrong or missing token")
