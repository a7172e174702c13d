"""A small OpenAI-compatible chat endpoint over real HTTP that answers, and fails, as a test tells it."""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CUT = 0
"""In the place of a status: the connection is closed without an answer."""
Answer = tuple[int, Any, dict[str, str]]


def said(text: str, tokens: int = 10) -> Answer:
    """A reply as the protocol wants it."""
    return 200, {"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}}, {}


def status(code: int, **headers: str) -> Answer:
    """A failure."""
    return (
        code,
        {"error": {"message": f"this is {code}"}},
        {k.replace("_", "-"): v for k, v in headers.items()},
    )


class JudgeServer:
    """`answer(prompt, try_number)`: what to send; try numbers count from 0 for each prompt."""

    def __init__(self, answer: Callable[[str, int], Answer], *, delay_s: float = 0.0) -> None:
        self.answer = answer
        self.delay_s = delay_s
        self.requests: list[dict] = []
        self.headers: list[dict] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._tries: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "JudgeServer":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def respond(self, body: dict, headers: dict) -> Answer:
        """Count, wait, answer."""
        prompt = body["messages"][0]["content"]
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            number = self._tries[prompt]
            self._tries[prompt] += 1
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            time.sleep(self.delay_s)
            return self.answer(prompt, number)
        finally:
            with self._lock:
                self._in_flight -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        judge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                code, content, headers = judge.respond(
                    body, {name.title(): value for name, value in self.headers.items()}
                )
                if code == CUT:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(code)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
