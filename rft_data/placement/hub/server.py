"""Serves a buffer and its ledgers to other processes, over Arrow Flight on loopback unless told otherwise.

Every call needs the run's token. The connection is not encrypted: on a network, use a private one.
`buffer_calls.py` carries out the calls.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight

from rft_data.buffer import Buffer
from rft_data.core.codec import aligned
from rft_data.core.errors import BusyError, RftError, StalledError
from rft_data.placement.hub.buffer_calls import Calls
from rft_data.placement.hub.wire import (
    LedgerKey,
    Rows,
    authorization,
    check_form,
    check_size,
    decode_call,
    encode_error,
    encode_result,
    message_batches,
)
from rft_data.sampler.ledger import Ledger

MAX_RECEIVING = 64
"""Calls with rows that are received at a time; times the largest size of a call, this bounds the memory."""
RECEIVING_DEADLINE_S = 60.0
STOP_S = 10.0
"""How long `close` waits for calls that have no answer yet."""
_log = logging.getLogger(__name__)


class HubServer:
    """One buffer, served. Several may serve different buffers in one process."""

    def __init__(
        self, buffer: Buffer, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        """Prepare to serve `buffer`; the caller closes it, after the hub.

        `port`: 0 uses any free one. `token`: None makes a random one.
        """
        self._calls = Calls(buffer)
        self._host, self._port = host, port
        self.token = token or secrets.token_urlsafe(32)
        self._flight: _Flight | None = None

    @property
    def address(self) -> str:
        """Address for clients, `grpc://host:port`.

        Raises: RftError before `start`.
        """
        if self._flight is None:
            raise RftError("the hub has no address before it is started; call start().")
        return f"grpc://{self._host}:{self._flight.port}"

    def ledger(self, run_id: str, attempt: int, *, max_uses: int = 1) -> Ledger:
        """The ledger that clients of this run use; code in this process must use it too.

        Raises: ConflictError if it is open with another `max_uses`.
        """
        return self._calls.ledgers.ledger(LedgerKey(run_id, attempt, max_uses))

    def start(self) -> HubServer:
        """Start to accept calls; idempotent.

        Raises: BusyError if the port is taken.
        """
        if self._flight is None:
            try:
                self._flight = _Flight(self._calls, f"grpc://{self._host}:{self._port}", self.token)
            except (pa.ArrowException, OSError) as err:
                raise BusyError(
                    f"the hub cannot listen on {self._host}:{self._port}; another process may use the port. "
                    "Choose another one, or 0 for any."
                ) from err
        return self

    def close(self) -> None:
        """Answer the calls that have arrived, for at most STOP_S, and stop; idempotent."""
        if self._flight is None:
            return
        self._flight.closing.set()
        stopping = threading.Thread(target=self._flight.shutdown, name="hub-stop", daemon=True)
        stopping.start()  # Flight's own shutdown may wait for a client that stopped reading
        stopping.join(STOP_S)
        self._flight = None

    def __enter__(self) -> HubServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    """The Flight server: receives calls and sends answers."""

    def __init__(self, calls: Calls, location: str, token: str) -> None:
        self._calls = calls
        self._receiving = threading.BoundedSemaphore(MAX_RECEIVING)
        self.closing = threading.Event()
        super().__init__(location, middleware={"token": _TokenCheck(token)})

    def do_exchange(
        self,
        _context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Receive one call and answer it; an error is an answer too."""
        sent = _Sent(reader)
        try:
            try:
                last = self._answer(descriptor.command or b"", sent, writer)
            except RftError as err:
                last = encode_error(err)
            sent.discard()  # a client that is still sending would not get the answer
            writer.write_metadata(last)
        except pa.ArrowException:
            _log.warning("a client closed its connection before it was answered")

    def _answer(self, call: bytes, sent: _Sent, writer: flight.MetadataRecordBatchWriter) -> bytes:
        """Write the rows of the answer, and return its JSON part."""
        method, args, rows = decode_call(call)
        with _as_rft_error(method):
            if self._calls.brings_rows(method):
                result = self._with_rows(method, args, rows, sent)
            else:
                result = self._calls.answer(method, args)
            if not isinstance(result, Rows):
                return encode_result(result)
        sent.discard()
        writer.begin(result.schema)
        parts = message_batches(result.schema, result.batches)
        while (part := self._next(method, parts)) is not None:
            writer.write_batch(part)
        return encode_result(None)

    def _next(self, method: str, parts: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        if self.closing.is_set():
            raise StalledError("the hub was closed in the middle of an answer; ask again.")
        with _as_rft_error(method):
            return next(parts, None)

    def _with_rows(self, method: str, args: dict[str, object], rows: int, sent: _Sent) -> object:
        """Receive the rows of a call and make it; at most MAX_RECEIVING calls do so at a time.

        Raises: StalledError if it has waited RECEIVING_DEADLINE_S for the others.
        """
        if not self._receiving.acquire(timeout=RECEIVING_DEADLINE_S):
            raise StalledError(
                f"the hub was receiving {MAX_RECEIVING} other calls with rows "
                f"for {RECEIVING_DEADLINE_S:g} s; nothing of this one is stored. Send it again."
            )
        try:
            return self._calls.answer(method, args, sent.table(rows))
        finally:
            self._receiving.release()


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


class _Sent:
    """The rows that a client sends with a call."""

    def __init__(self, reader: flight.MetadataRecordBatchReader) -> None:
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
        """Read the rows; there must be `rows` of them.

        Raises: RowError for too many bytes or bad Arrow data; StalledError if some are missing.
        """
        batches, size = list[pa.RecordBatch](), 0
        for batch in self._batches():
            size += batch.nbytes
            check_size(size)
            batches.append(aligned(batch))
        table = pa.Table.from_batches(batches) if batches else pa.table({})
        if table.num_rows != rows:  # to Flight, a client that died has sent all
            raise StalledError(
                f"{table.num_rows} of {rows} rows of a hub call arrived; nothing of it is stored. "
                "Send it again."
            )
        check_form(table)
        return table

    def discard(self) -> None:
        """Read and drop the rest: the client reads the answer only when all is sent."""
        for _ in self._batches():
            pass


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses a call without the token, before any of its content is read."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = authorization(token).encode()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        """Called by Flight at the start of every call."""
        found = "".join(headers.get("authorization", [])).encode()
        if not hmac.compare_digest(found, self._wanted):
            raise flight.FlightUnauthenticatedError("wrong or missing token")
