"""Whatever is sent to the routes of a server: schemathesis makes the requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from explorers.capture.captured_app import CapturedApp
from explorers.capture.control import control_app
from explorers.capture.fields import ROUTES
from explorers.capture.trajectory import Trajectory
from tests.explorers.capture.conftest import SAMPLING, TOKEN, Served
from tests.explorers.capture.test_recorder import chat, trained
from tests.explorers.capture.test_service import OWNER, opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAMPLED_FIELDS = (
    "messages", "prompt", "input", "system", "instructions", "tools", "tool_choice", "stop", "stop_token_ids",
    "stop_sequences", "logprobs", "top_logprobs", "stream", "metadata", "user", "text", "max_tokens",
)  # fmt: skip
"""Fields of requests that go through the gate, whatever is in them."""


def operations(document: dict[str, Any], at: str, paths: Collection[str] | None = None) -> list[Any]:
    """What schemathesis finds in a description of routes: all of them, or those of some paths."""
    found = {path: routes for path, routes in document["paths"].items() if paths is None or path in paths}
    contract = schemathesis.openapi.from_dict({**document, "paths": found})
    contract.config.base_url = at
    return [one.ok() for one in contract.get_all_operations()]


def tried(operation: Any, examples: int, send: Callable[[schemathesis.Case], None], **how: Any) -> None:
    """Send so many cases of an operation."""
    cases = given(operation.as_strategy(**how))
    settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))(cases(send))()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_body_makes_a_route_fail(served: Served, mode: GenerationMode) -> None:
    described = control_app(served.service).openapi()
    found = operations(described, served.address)
    assert len(found) == 6
    codes: set[int] = set()
    with httpx.Client(base_url=served.address, trust_env=False, timeout=60) as http:
        one, client, _ = opened(http)
        chat(client, max_tokens=1)
    of_one = iter(range(10_000))

    def sent(case: schemathesis.Case) -> None:
        case.headers["authorization"] = OWNER["authorization"]
        if "name" in case.path_parameters and next(of_one) % 2:
            case.path_parameters["name"] = one["id"]
        answer = case.call()
        codes.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        assert TOKEN not in answer.text

    for operation in found:
        if mode is GenerationMode.POSITIVE or operation.method == "post":  # others have no body
            tried(operation, 12, sent, generation_mode=mode)
    assert codes >= ({200, 201, 404} if mode is GenerationMode.POSITIVE else {422}), codes
    assert served.service.serves


async def asked_of_a_run(served: Served, trajectory: Trajectory, path: str, body: Any) -> httpx.Response:
    """The same server as a run's programs and users meet it, who are told what a rollout is failed with."""
    app = CapturedApp(served.gate, trajectory)
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://run") as http:
        answer = await http.post(path, json=body)
        assert (answer.status_code == 200) <= (app.error is None and app.end is None), answer.text
        assert (answer.status_code == 400) <= (app.error is not None or app.end is not None), answer.text
        assert app.answering == 0
        await app.close()
        assert (await http.post(path, json=body)).status_code == 409
    trajectory.closed, trajectory.error, trajectory.end = False, None, None
    return answer


async def asked_at_its_url(served: Served, trajectory: Trajectory, path: str, body: Any) -> httpx.Response:
    """The server as clients of `rft serve` meet it."""
    key = {"authorization": f"Bearer {served.capture.key(trajectory.id)}"}
    async with httpx.AsyncClient(base_url=served.address, trust_env=False, timeout=60) as http:
        return await http.post(f"/t/{trajectory.id}{path}", json=body, headers=key)


@pytest.mark.heavy
@pytest.mark.parametrize("asked", [asked_at_its_url, asked_of_a_run])
def test_no_body_makes_a_route_of_vllms_server_fail(served: Served, asked: Callable[..., Any]) -> None:
    """As they are generated, and with the fields alone that the gate knows: these reach vLLM's server."""
    document = served.gate.inner.openapi()  # type: ignore[attr-defined]
    found = operations(document, served.address, ROUTES)
    assert len(found) == len(ROUTES) == 4
    reached: Counter[str] = Counter()
    sampling = replace(SAMPLING, max_tokens=2)

    def sent(case: schemathesis.Case) -> None:
        trajectory, _ = served.open(sampling=sampling)
        trajectory.budget = 64
        known = {name: value for name, value in case.body.items() if name in SAMPLED_FIELDS}
        sampled = 0
        for body in (case.body, {**known, "model": "tiny"}):
            before = sampled
            answer = served.loop.run(asked(served, trajectory, case.path, body))
            assert answer.status_code < 500, (body, answer.text)
            sampled = sum(len(turn.sampled) for turn in trajectory.turns)
            assert (sampled > before) <= (answer.status_code == 200), "what was refused left no turn"
            assert trajectory._asked == 0
            reached[case.path] += "no such route" not in answer.text and body is not case.body
        assert trained(served.rows(served.capture.close(trajectory.id))) == sampled

    for operation in found:
        tried(operation, 6, sent)
    assert set(reached) == ROUTES
