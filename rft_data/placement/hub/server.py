"""Serves a buffer and its ledgers to other processes, over TCP on loopback unless told otherwise.

Every connection begins with a token (`access.py`). At any address but loopback it speaks TLS (`tls.py`).
`serving.py` answers the calls of one connection, `buffer_calls.py` carries them out.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, RftError
from rft_data.core.network import reachable_host
from rft_data.core.words import HubRole
from rft_data.placement.hub.address import Place, is_loopback
from rft_data.placement.hub.buffer_calls import Calls
from rft_data.placement.hub.frames import Channel
from rft_data.placement.hub.run_files import RunFiles, RunFolders
from rft_data.placement.hub.serving import Served, Serving
from rft_data.placement.hub.tls import Certificate, certificate
from rft_data.placement.hub.wire import LedgerKey
from rft_data.sampler.ledger import Ledger

MAX_STRANGERS = 128
"""Connections without a right token yet; the oldest is closed for the next one."""
STOP_S = 10.0
"""How long `close` waits for calls that have no answer yet."""
_BACKLOG = 1024
_PAUSE_S = 0.1
_log = logging.getLogger(__name__)


class HubServer:
    """One buffer, served. Several may serve different buffers in one process."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        folders: RunFolders | None = None,
    ) -> None:
        """Prepare to serve `buffer`; the caller closes it, after the hub.

        `port`: 0 uses any free one. `token`: the secret, which the tokens of clients are made from; None
        makes a random one. `folders`: of a run whose roles may be on nodes that do not see them.
        Raises: MissingExtraError if `host` is not loopback, and what TLS needs is not installed.
        """
        self.token = token or secrets.token_urlsafe(32)
        self._certificate = None if is_loopback(host) else certificate(self.token)
        self._calls = Calls(buffer, None if folders is None else RunFiles(folders))
        self._serving = Serving(self._calls, self.token)
        self._host, self._port = host, port
        self._listener: _Listener | None = None

    @property
    def address(self) -> str:
        """Address for clients, `hub://host:port`, with the digest of its certificate where it speaks TLS.

        Where it listens at all addresses of this machine, the one that most others reach.
        Raises: RftError before `start`.
        """
        if self._listener is None:
            raise RftError("the hub has no address before it is started; call start().")
        digest = None if self._certificate is None else self._certificate.digest
        return str(Place(reachable_host(self._host), self._listener.port, digest))

    def connections(self, role: HubRole) -> int:
        """How many connections clients with tokens of this role have now."""
        return self._serving.connections(role)

    def ledger(self, run_id: str, attempt: int, *, max_uses: int = 1) -> Ledger:
        """The ledger that clients of this run use; code in this process must use it too.

        Raises: ConflictError if it is open with another `max_uses`.
        """
        return self._calls.ledgers.ledger(LedgerKey(run_id, attempt, max_uses))

    def start(self) -> HubServer:
        """Start to accept calls; idempotent.

        Raises: BusyError if the port is taken.
        """
        if self._listener is None:
            try:
                listening = socket.create_server((self._host, self._port), backlog=_BACKLOG)
            except OSError as err:
                raise BusyError(
                    f"the hub cannot listen on {self._host}:{self._port}; another process may use the port. "
                    "Choose another one, or 0 for any."
                ) from err
            self._serving.closing.clear()
            self._listener = _Listener(listening, self._serving, self._certificate)
        return self

    def close(self) -> None:
        """Answer the calls that have arrived, for at most STOP_S, and stop; idempotent."""
        if self._listener is not None:
            self._serving.closing.set()
            self._listener.close(STOP_S)
            self._listener = None

    def __enter__(self) -> HubServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Listener:
    """Accepts connections; a thread for each."""

    def __init__(self, listening: socket.socket, serving: Serving, certificate: Certificate | None) -> None:
        self._certificate = certificate
        self._socket = listening
        self._serving = serving
        self._lock = threading.Lock()
        self._served: dict[Served, threading.Thread] = {}
        self.port = int(listening.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="hub-accept", daemon=True)
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Accept nothing more, wait for the answers under way, then close every connection."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        with self._lock:
            served = dict(self._served)
        for connection in served:
            connection.channel.end_reading()
        end = time.monotonic() + within_s
        for thread in served.values():
            thread.join(max(0.0, end - time.monotonic()))
        for connection in served:
            connection.channel.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError as err:
                if self._serving.closing.is_set():
                    return
                _log.warning("the hub could not accept a connection: %s", err)
                time.sleep(_PAUSE_S)  # no file descriptors left: some may be freed
                continue
            channel = self._channel(accepted)
            if channel is None:
                continue
            connection = Served(channel, self._serving)
            thread = threading.Thread(target=self._serve, args=(connection,), name="hub-call", daemon=True)
            with self._lock:
                self._served[connection] = thread
                strangers = [one for one in self._served if one.client is None]
            for stranger in strangers[:-MAX_STRANGERS]:
                stranger.channel.hang_up()
            thread.start()

    def _channel(self, accepted: socket.socket) -> Channel | None:
        """The connection, not agreed on yet where it is a TLS one; None if the client has gone already."""
        try:
            if self._certificate is not None:
                accepted = self._certificate.context.wrap_socket(
                    accepted, server_side=True, do_handshake_on_connect=False
                )
            return Channel(accepted)
        except OSError:
            accepted.close()
            return None

    def _serve(self, connection: Served) -> None:
        try:
            connection.run()
        finally:
            connection.channel.close()
            with self._lock:
                self._served.pop(connection, None)
