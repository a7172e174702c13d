"""A run's last numbers for Prometheus: `/metrics` in its text format 0.0.4, and `/healthz`.

Served on loopback by a thread of the conductor, without a dependency; off unless a port is given. A name is
`rft_` and the first part of a metric's key; the rest of the key is the label `part`.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rft_data.core.errors import BusyError
from rft_data.run.watch.metrics_log import Point

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_HOSTS = (LOOPBACK, "localhost")
_READ_S = 5.0
"""What a client gets to send its request."""


def exposition(run_id: str, point: Point | None) -> str:
    """Prometheus' text format: every number of a point as a gauge with labels run, role and, if any, part."""
    families: dict[str, dict[str, float]] = {"rft_up": {_labels({"run": run_id}): 1.0}}
    if point is not None:
        families["rft_step"] = {_labels({"run": run_id}): float(point.step)}
        for role, numbers in point.numbers.items():
            for key, value in numbers.items():
                name, part = _named(key)
                labels = {"run": run_id, "role": role} | ({"part": part} if part else {})
                families.setdefault(name, {})[_labels(labels)] = value
    lines = []
    for name, samples in sorted(families.items()):
        lines.append(f"# TYPE {name} gauge")
        lines += [f"{name}{labels} {_number(value)}" for labels, value in samples.items()]
    return "\n".join(lines) + "\n"


def _named(key: str) -> tuple[str, str]:
    """Metric name and label `part` of a key; a key whose first part is no name keeps its spelling there."""
    first, _, rest = key.partition("/")
    name = _NOT_IN_NAMES.sub("_", first)
    return f"rft_{name}", rest if name == first else key


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    clean = value.encode("utf-8", "replace").decode()
    return clean.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if value in (float("inf"), float("-inf")) else repr(float(value))


class MetricsServer:
    """Answers on loopback until closed."""

    def __init__(
        self,
        port: int,
        run_id: str,
        latest: Callable[[], Point | None],
        health: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Listen on `port` (0: any free one; the caller takes a recipe's 0 to mean no server).

        Args:
            latest: the last point recorded.
            health: what `/healthz` answers as JSON; status 200 if its `state` is `running`, else 503.
        Raises: BusyError if the port is taken.
        """
        handler = _handler(lambda: exposition(run_id, latest()), health)
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), handler)
        except OSError as err:
            raise BusyError(
                f"cannot serve metrics on {LOOPBACK}:{port}: {err.strerror or err}; give another port, "
                "or 0 to do without."
            ) from err
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True)
        self._thread.start()
        log.info("metrics for Prometheus at http://%s:%d/metrics", LOOPBACK, self.port)

    def close(self) -> None:
        """Stop answering; idempotent."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _handler(
    metrics: Callable[[], str], health: Callable[[], Mapping[str, Any]]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One request."""

        timeout = _READ_S

        def do_GET(self) -> None:
            """Answer /metrics and /healthz; nothing else is there."""
            host = self.headers.get("Host", LOOPBACK).partition(":")[0]
            if host not in _HOSTS:  # a page elsewhere whose name was pointed at this machine
                self._answer(403, "text/plain", "only under the name localhost\n")
            elif self.path == "/metrics":
                self._answer(200, CONTENT_TYPE, metrics())
            elif self.path == "/healthz":
                found = health()
                status = 200 if found.get("state") == "running" else 503
                self._answer(status, "application/json", json.dumps(found, default=str) + "\n")
            else:
                self._answer(404, "text/plain", "there are /metrics and /healthz\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not worth a line each."""

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
