"""A reward model behind HTTP, as the reward `reward_server` asks it: `rft reward-server MODEL`.

A POST to /score holds `{"conversations": [[{"role", "content"}, ...], ...]}`; the answer is
`{"rewards": [...]}` with a number for each, or `{"unscored": reason, "cause": cause}` where there is none.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from explorers.rewards.conversation_scorer import Conversation
from rft_data.core.errors import BusyError
from rft_data.core.workflow import Unscored

PATH = "/score"
_BODY_BYTES = 8 << 20
_DIGITS = 20
"""Most digits of a length that is read: Python refuses to read thousands of them."""
_CONNECTIONS = 64
"""Most connections at a time; one more is told to come back before it is read."""
_READ_S = 30.0
_CHUNK = 1 << 16
_RETRY_S = 1
_BUSY = f"HTTP/1.0 429 Too Many Requests\r\nRetry-After: {_RETRY_S}\r\nContent-Length: 0\r\n\r\n".encode()


class Scorer(Protocol):
    """Scores conversations, one call at a time."""

    def scores(self, conversations: Sequence[Conversation]) -> list[float | Unscored]: ...


class RewardService(ThreadingHTTPServer):
    """Answers until closed. Its memory is bounded: so many requests at a time, of at most 8 MiB each."""

    daemon_threads = False  # so that closing waits for the requests under way
    allow_reuse_address = True

    def __init__(self, scorer: Scorer, token: str, *, host: str, port: int, requests: int = 16) -> None:
        """Listen; nothing is answered before `serve_forever`.

        Args:
            token: what a client has to send as the bearer token. port: 0 means any free one.
            requests: how many may wait or be scored at a time; others get 429 with Retry-After.
        Raises: BusyError when the address cannot be listened on.
        """
        try:
            super().__init__((host, port), _Handler)
        except OSError as err:
            raise BusyError(
                f"cannot listen on {host}:{port}: {err.strerror or err}; give another --port or --host."
            ) from err
        self.scorer, self.token = scorer, token
        self.slots = threading.BoundedSemaphore(requests)
        self.scoring = threading.Lock()
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)

    @property
    def url(self) -> str:
        """The URL to which conversations are posted."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}{PATH}"

    def process_request(self, request: Any, client_address: object) -> None:
        """Answer in a thread of its own; at once where there are too many."""
        if self._connections.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # the machine has no thread left
                self._connections.release()
            else:
                return
        request.settimeout(1.0)
        try:
            request.sendall(_BUSY)
        except OSError:  # the client has gone
            return
        finally:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: object) -> None:
        """Answer one connection, then free its place among the connections allowed at a time."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: RewardService
    timeout = _READ_S

    def do_POST(self) -> None:
        """Score conversations."""
        size = self.headers.get("Content-Length", "")
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not size.isdecimal():
            self._answer(HTTPStatus.LENGTH_REQUIRED, {"error": "a Content-Length is needed"})
        elif len(size) > _DIGITS or int(size) > _BODY_BYTES:
            self._answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"at most {_BODY_BYTES} bytes at a time"}
            )
        elif not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            self._skip(int(size))
            self._answer(HTTPStatus.UNAUTHORIZED, {"error": "another bearer token is needed"})
        elif self.path != PATH:
            self._skip(int(size))
            self._answer(HTTPStatus.NOT_FOUND, {"error": f"there is only {PATH}"})
        elif not self.server.slots.acquire(blocking=False):
            self._skip(int(size))
            self._answer(HTTPStatus.TOO_MANY_REQUESTS, {"error": "too many requests at a time"})
        else:
            try:
                self._answer(*self._scored(self.rfile.read(int(size))))
            finally:
                self.server.slots.release()

    def _scored(self, body: bytes) -> tuple[HTTPStatus, dict[str, object]]:
        conversations = _conversations(body)
        if conversations is None:
            wanted = '{"conversations": [[{"role": text, "content": text}, ...], ...]}'
            return HTTPStatus.BAD_REQUEST, {"error": f"wanted {wanted}"}
        try:
            with self.server.scoring:
                found = self.server.scorer.scores(conversations)
        except Exception as err:  # noqa: BLE001 - the model, its template and its device are the user's
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(err).__name__}: {err}"}
        return HTTPStatus.OK, {"rewards": [_told(one) for one in found]}

    def _skip(self, size: int) -> None:
        """Read a body and keep none of it: a client that is not heard out may not hear the answer."""
        while size > 0:
            part = self.rfile.read(min(size, _CHUNK))
            if not part:
                return
            size -= len(part)

    def _answer(self, status: HTTPStatus, content: Mapping[str, object]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status is HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", str(_RETRY_S))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def _conversations(body: bytes) -> list[Conversation] | None:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = asked.get("conversations") if isinstance(asked, Mapping) else None
    good = isinstance(found, list) and all(
        isinstance(one, list) and one and all(isinstance(message, Mapping) for message in one)
        for one in found
    )
    return found if good else None


def _told(score: float | Unscored) -> float | dict[str, str]:
    return {"unscored": score.reason, "cause": score.cause} if isinstance(score, Unscored) else score
