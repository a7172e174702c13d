"""The routes of a served run, whatever is sent to them: schemathesis makes the requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from explorers.conversations.model import Model
from explorers.conversations.model_app import ModelApp
from explorers.conversations.openai_client import RolloutClient
from explorers.conversations.template import ChatTemplate
from explorers.workflows.visits import Visits
from rft_data.core.engine import Completion, Sampling
from tests.explorers.workflows.test_served import TOKEN

BASE = "http://run"
NUMBER: dict[str, Any] = {"type": "number"}
REWARD = {
    "anyOf": [
        NUMBER,
        {
            "type": "object",
            "properties": {"reward": NUMBER, "parts": {"type": "object", "additionalProperties": NUMBER}},
            "required": ["reward"],
        },
    ]
}
TEXT: dict[str, Any] = {"type": "string"}
MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": ["system", "user", "assistant", "tool"]}, "content": TEXT},
    "required": ["role", "content"],
}
ASKED: dict[str, Any] = {
    "model": TEXT, "max_tokens": {"type": "integer", "minimum": 1}, "n": {"enum": [1, 2]},
    "stop": {"type": "array", "items": TEXT}, "stream": {"type": "boolean"}, "tools": {"type": "array"},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
}  # fmt: skip
CHAT = {"messages": {"type": "array", "items": MESSAGE, "minItems": 1}}


def described(properties: dict[str, Any], needed: str) -> dict[str, Any]:
    return {"type": "object", "properties": {**ASKED, **properties}, "required": [needed]}


ROUTES = {
    "/trajectories": {"type": "object", "maxProperties": 0},
    "/trajectories/{name}/reward": REWARD,
    "/trajectories/{name}/end": REWARD,
    "/trajectories/{name}/abandon": {},
    "/t/{name}/reward": REWARD,
    "/t/{name}/v1/chat/completions": described(CHAT, "messages"),
    "/t/{name}/v1/completions": described({"prompt": TEXT}, "prompt"),
}
"""What may be posted where."""
LISTED = {"anyOf": [{}, {"type": "array", "items": {"anyOf": [{}, {"type": "integer"}, MESSAGE]}}]}
NEEDED = {"/t/{name}/v1/chat/completions": "messages", "/t/{name}/v1/completions": "prompt"}
ANYTHING = {
    path: {
        "type": "object",
        "properties": dict.fromkeys(ROUTES[path]["properties"], LISTED),
        "required": [needed],
    }
    for path, needed in NEEDED.items()
}
"""The routes that sample, with fields of any type."""


class Says:
    """An engine that says the same for ever."""

    version = 0

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    async def generate(self, prompt_ids: Any, sampling: Sampling) -> Completion:
        assert prompt_ids
        assert all(type(one) is int for one in prompt_ids)
        assert all(isinstance(text, str) and text for text in sampling.stop)
        ids = self._ids[: sampling.max_tokens]
        return Completion(ids, [-0.5] * len(ids), "stop", [(0, 0, len(ids))])


def operations(routes: dict[str, Any]) -> list[Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    paths = {
        path: {
            "post": {
                "parameters": [name] if "{name}" in path else [],
                "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                "responses": {"default": {"description": "any"}},
            }
        }
        for path, schema in routes.items()
    }
    document = {"openapi": "3.1.0", "info": {"title": "a served run", "version": "1"}, "paths": paths}
    return [one.ok() for one in schemathesis.openapi.from_dict(document).get_all_operations()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routes", "mode"),
    [
        (ROUTES, GenerationMode.POSITIVE),
        (ROUTES, GenerationMode.NEGATIVE),
        (ANYTHING, GenerationMode.POSITIVE),
    ],
    ids=["right", "wrong", "anything"],
)
def test_no_body_makes_a_route_of_a_served_run_fail(
    tokenizer: Any, routes: dict[str, Any], mode: GenerationMode
) -> None:
    template = ChatTemplate(tokenizer)
    engine: Any = Says(template.ids("four<|im_end|>"))

    async def guest() -> ModelApp:
        return ModelApp(RolloutClient(Model(engine, template, Sampling(64), room=10_000), Sampling(64)))

    visits = Visits(TOKEN, guest, idle_s=60.0, guests=10_000)
    codes: dict[str, Counter[int]] = {path: Counter() for path in routes}

    async def asked(case: schemathesis.Case) -> httpx.Response:
        """Send a case to a trajectory of its own."""
        transport = httpx.ASGITransport(app=visits)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
            owner = {"authorization": f"Bearer {TOKEN}"}
            one = (await http.post("/trajectories", headers=owner)).json()
            path = case.path.replace("{name}", one["id"])
            headers = {"authorization": f"Bearer {one['key']}"} if path != case.path else owner
            more = case.as_transport_kwargs(base_url=BASE)
            body = {name: more[name] for name in ("json", "data", "content") if more.get(name) is not None}
            answer = await http.post(path, headers=headers, **body)
            assert one["key"] not in answer.text or path == "/trajectories"
            key = {"authorization": f"Bearer {one['key']}"}
            ended = await http.post(f"/trajectories/{one['id']}/end", headers=key)
            assert ended.status_code in (200, 401, 409), "it was over, or is now"
        return answer

    with asyncio.Runner() as runner:

        def sent(case: schemathesis.Case) -> None:
            answer = runner.run(asked(case))
            codes[case.path][answer.status_code] += 1
            assert answer.status_code < 500, answer.text
            assert TOKEN not in answer.text

        for operation in operations(routes):
            if mode is GenerationMode.NEGATIVE and not routes[operation.path]:
                continue  # no body is wrong there
            cases = given(operation.as_strategy(generation_mode=mode))
            fixed = settings(
                max_examples=8 if routes is ROUTES else 40,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            fixed(cases(sent))()
        runner.run(asyncio.sleep(0.1))
    if mode is GenerationMode.POSITIVE and routes is ROUTES:
        assert all({200, 201} & seen.keys() for seen in codes.values()), codes
    else:
        assert all(400 in seen for path, seen in codes.items() if "abandon" not in path), codes
