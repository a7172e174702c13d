"""A run's last numbers for Prometheus: `/metrics` as prometheus_client writes it, and `/healthz`.

Served on loopback by a thread of the conductor; off unless a port is given. A metric's name is `rft_` and the
first part of the number's key; the rest of the key is the label `part`.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rft_data.core.errors import BusyError
from rft_data.core.words import RunState
from rft_data.run.watch.tracker_feed import Point

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_HOSTS = (LOOPBACK, "localhost")
_READ_S = 5.0
"""Seconds that a client gets to send its request."""
_LABELS = ("run", "role", "part")
_HELP = "At the newest optimizer step of the run."


class PointCollector(Collector):
    """Every number of the last point as a gauge with labels run, role and, if any, part."""

    def __init__(self, run_id: str, latest: Callable[[], Point | None]) -> None:
        """`latest`: the last point recorded, or None before the first."""
        self._run_id = run_id
        self._latest = latest

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges now, as the library asks for them."""
        families: dict[str, GaugeMetricFamily] = {}
        for name, labels, value in self._samples():
            family = families.setdefault(name, GaugeMetricFamily(name, _HELP, labels=_LABELS))
            family.add_metric(labels, value)
        return families.values()

    def _samples(self) -> Iterator[tuple[str, Sequence[str], float]]:
        """Metric name, values of the first of `_LABELS`, number."""
        yield "rft_up", [self._run_id], 1.0
        point = self._latest()
        if point is None:
            return
        yield "rft_step", [self._run_id], point.step
        for role, numbers in point.numbers.items():
            for key, value in numbers.items():
                name, part = _named(key)
                yield name, [self._run_id, role, part] if part else [self._run_id, role], value


def _named(key: str) -> tuple[str, str]:
    """Metric name and label `part` of a key; a key whose first part is no name keeps its spelling there."""
    first, _, rest = key.partition("/")
    name = _NOT_IN_NAMES.sub("_", first)
    return f"rft_{name}", rest if name == first else key


class MetricsServer:
    """Answers on loopback until closed."""

    def __init__(
        self,
        port: int,
        run_id: str,
        latest: Callable[[], Point | None],
        health: Callable[[], Mapping[str, object]],
    ) -> None:
        """Listen on `port` (0: any free one; the caller takes a recipe's 0 to mean no server).

        Args:
            latest: the last point recorded.
            health: what `/healthz` answers as JSON; status 200 if its `state` is `running`, else 503.
        Raises: BusyError if the port is taken.
        """
        registry = CollectorRegistry()
        registry.register(PointCollector(run_id, latest))
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(registry, health))
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


def _handler(metrics: CollectorRegistry, health: Callable[[], Mapping[str, object]]) -> type[MetricsHandler]:
    class Handler(MetricsHandler):
        """One request."""

        registry = metrics
        timeout = _READ_S

        def do_GET(self) -> None:
            """Answer /metrics and /healthz; nothing else is there."""
            host = self.headers.get("Host", LOOPBACK).partition(":")[0]
            if host not in _HOSTS:  # a page elsewhere whose name was pointed at this machine
                self._answer(403, "text/plain", "only under the name localhost\n")
            elif self.path == "/metrics":
                super().do_GET()
            elif self.path == "/healthz":
                found = health()
                status = 200 if found.get("state") == RunState.RUNNING else 503
                self._answer(status, "application/json", json.dumps(found, default=str) + "\n")
            else:
                self._answer(404, "text/plain", "there are /metrics and /healthz\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
