import http.client
import json
import math
import re

import pytest
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest, parser

from rft_data.core.errors import BusyError
from rft_data.run.watch.prometheus import MetricsServer, PointCollector
from rft_data.run.watch.tracker_feed import Point

POINT = Point(
    4,
    9,
    1.0,
    {
        "trainer": {"reward": 0.5, "loss": math.nan, "kl": math.inf, "a b": 1.0},
        "explorer-0": {"bubble": 0.25, "reward": -0.125},
        "sampler": {"lag_in_queue/8+": 3.0, 'pass_rate/odd"name\\\n': 1e-9},
    },
)

Sample = tuple[str, frozenset[tuple[str, str]]]


def exposition(run_id: str, point: Point | None) -> str:
    registry = CollectorRegistry()
    registry.register(PointCollector(run_id, lambda: point))
    return generate_latest(registry).decode()


def unescaped(match: re.Match[str]) -> str:
    return {"\\\\": "\\", '\\"': '"', "\\n": "\n"}[match.group()]


def parse(text: str) -> dict[Sample, float]:
    """Prometheus' text format by its grammar: a line is a comment, or name{label="value",...} number."""
    found: dict[Sample, float] = {}
    typed: set[str] = set()
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert (name in typed, kind) == (False, "gauge")
            typed.add(name)
            continue
        match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[^"]|"(?:\\.|[^"\\])*")*)\} (\S+)', line)
        assert match is not None, line
        name, inside, number = match.groups()
        assert name in typed
        pairs = re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:\\.|[^"\\])*)"(?:,|$)', inside)
        labels = frozenset((key, re.sub(r"\\.", unescaped, value)) for key, value in pairs)
        assert (name, labels) not in found
        found[name, labels] = float(number)
    return found


def value_of(found: dict[Sample, float], name: str, **labels: str) -> float:
    return found[name, frozenset({"run": "r1", **labels}.items())]


def test_every_number_comes_back_from_the_text() -> None:
    found = parse(exposition("r1", POINT))
    assert value_of(found, "rft_reward", role="trainer") == 0.5
    assert value_of(found, "rft_reward", role="explorer-0") == -0.125
    assert value_of(found, "rft_bubble", role="explorer-0") == 0.25
    assert math.isnan(value_of(found, "rft_loss", role="trainer"))
    assert value_of(found, "rft_kl", role="trainer") == math.inf
    assert value_of(found, "rft_lag_in_queue", role="sampler", part="8+") == 3.0
    assert value_of(found, "rft_pass_rate", role="sampler", part='odd"name\\\n') == 1e-9
    assert value_of(found, "rft_a_b", role="trainer", part="a b") == 1.0
    assert (value_of(found, "rft_up"), value_of(found, "rft_step")) == (1.0, 4.0)
    assert len(found) == 2 + sum(map(len, POINT.numbers.values()))


def test_prometheus_own_parser_agrees() -> None:
    families = parser.text_string_to_metric_families(exposition("r1", POINT))
    theirs = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    ours = parse(exposition("r1", POINT))
    assert theirs == pytest.approx(ours, rel=0, abs=0, nan_ok=True)


def test_before_the_first_step_the_run_is_up_and_says_no_more() -> None:
    assert parse(exposition("r1", None)) == {("rft_up", frozenset({("run", "r1")})): 1.0}


def ask(port: int, path: str, host: str | None = None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    connection.close()
    return found


@pytest.mark.slow
def test_the_endpoint_answers_with_the_newest_point() -> None:
    points: list[Point] = []
    state = {"state": "running", "step": 4}
    with MetricsServer(0, "r1", lambda: points[-1] if points else None, lambda: state) as server:
        assert "rft_step" not in ask(server.port, "/metrics")[2]
        points.append(POINT)
        status, kind, text = ask(server.port, "/metrics")
        assert (status, kind, parse(text).keys()) == (
            200,
            CONTENT_TYPE,
            parse(exposition("r1", POINT)).keys(),
        )
        status, kind, text = ask(server.port, "/healthz")
        assert (status, kind, json.loads(text)) == (200, "application/json", state)
        state["state"] = "failed"
        assert ask(server.port, "/healthz")[0] == 503
        assert ask(server.port, "/")[0] == 404
        assert ask(server.port, "/metrics", host="evil.example")[0] == 403
        assert ask(server.port, "/metrics", host=f"localhost:{server.port}")[0] == 200


@pytest.mark.slow
def test_the_endpoint_is_on_loopback_and_gone_after_close() -> None:
    server = MetricsServer(0, "r1", lambda: None, dict)
    assert server._server.server_address[0] == "127.0.0.1"
    with pytest.raises(BusyError, match=f"cannot serve metrics on 127.0.0.1:{server.port}"):
        MetricsServer(server.port, "r2", lambda: None, dict)
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        ask(server.port, "/metrics")
