"""Unchanged clients of a real server over a real engine: what they get, and what is recorded of it."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import fields
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from explorers.capture import nested
from explorers.capture.fields import ROUTES
from explorers.capture.trajectory import CONSTRAINED, Trajectory
from rft_data.core.rows import Experience
from tests.explorers.capture.conftest import SAMPLING, Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ASK = [{"role": "user", "content": "2 + 2 ="}]


def chat(client: openai.OpenAI, messages: Any = ASK, **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=messages, **more)


def trained(rows: list[Experience]) -> int:
    return sum(sum(row.action_mask or ()) for row in rows)


def check_exact(served: Served, trajectory: Trajectory) -> list[Experience]:
    """Every sampled token is trained once, with the logprob that the model gives it after these ids."""
    rows = served.rows(trajectory)
    model = AutoModelForCausalLM.from_pretrained(served.model).float().eval()
    assert trained(rows) == trajectory.sampled - trajectory.aborted_tokens
    for row in rows:
        ids, mask = list(row.token_ids or ()), list(row.action_mask or ())
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
        wanted = (logits / SAMPLING.temperature).log_softmax(-1)
        for place, one in enumerate(mask):
            if one:
                said = (row.logprobs or ())[place]
                assert math.isclose(said, wanted[place - 1, ids[place]], abs_tol=1e-4)
        assert [span[0] for span in row.version_spans] == [0] * len(row.version_spans)
        assert sum(end - start for _, start, end in row.version_spans) == sum(mask)
    return rows


def test_every_route_of_vllms_server_is_recorded_exactly(served: Served) -> None:
    trajectory, client = served.open()
    said = chat(client, max_tokens=9)
    assert said.usage.completion_tokens == trajectory.sampled <= 9
    assert said.choices[0].logprobs is None
    two = chat(client, n=2, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert all(len(one.top_logprobs) == 2 for choice in two.choices for one in choice.logprobs.content)
    streamed = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    whole = served.rows(trajectory)[-1].completion_text
    assert whole.rstrip("\ufffd") == text.rstrip("\ufffd")  # vLLM streams no half of a letter
    several = list(chat(client, stream=True, n=2))
    assert {chunk.choices[0].index for chunk in several if chunk.choices} == {0, 1}
    client.completions.create(model="tiny", prompt="1 + 1 =", max_tokens=5)
    client.completions.create(model="tiny", prompt=["1 + 1 =", "2 + 2 ="], max_tokens=5)
    client.responses.create(model="tiny", input="1 + 1 =", max_output_tokens=5)
    client.post("/messages", body={"model": "tiny", "messages": ASK, "max_tokens": 5}, cast_to=object)
    rows = check_exact(served, trajectory)
    assert len(rows) == 1 + 2 + 1 + 2 + 1 + 2 + 1 + 1
    assert [row.messages[0]["content"] for row in rows[:6]] == ["2 + 2 ="] * 6
    assert client.models.list().data[0].id == "tiny"


def test_the_logs_of_a_run_are_heard_beside_vllms_server(served: Served) -> None:
    assert served.engine.is_open
    assert logging.getLogger().level < logging.ERROR, "a package of vLLM's server silences the root logger"


def test_an_agent_of_many_turns_is_one_row(served: Served) -> None:
    trajectory, client = served.open()
    messages: list[dict[str, Any]] = list(ASK)
    for turn in range(5):
        said = chat(client, messages, max_tokens=6, extra_body={"stop_token_ids": list(range(4))})
        content = said.choices[0].message.content
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": f"{turn} + 1 ="}]
    rows = check_masked(served, trajectory)
    assert len(rows) == 1
    assert [one["role"] for one in rows[0].messages] == ["user", "assistant"] * 5


def check_masked(served: Served, trajectory: Trajectory) -> list[Experience]:
    """The same as `check_exact` where a random model said special tokens, which no client gets back."""
    rows = served.rows(trajectory)
    assert trained(rows) == sum(len(turn.sampled) for turn in trajectory.turns)
    return rows


def test_a_tool_call_goes_through_vllms_parser_and_its_turn_into_the_row(served: Served) -> None:
    trajectory, client = served.open()
    tool = {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }
    said = chat(client, tools=[tool], tool_choice="auto", max_tokens=4)
    assert said.choices[0].message.tool_calls in (None, [])
    [row] = check_exact(served, trajectory)
    assert row.tools == [tool]


def test_an_answer_under_a_grammar_is_one_and_says_so(served: Served) -> None:
    pytest.importorskip("lmformatenforcer")
    trajectory, client = served.open()
    schema = {
        "type": "object",
        "properties": {"x": {"enum": [1, 2]}},
        "required": ["x"],
        "additionalProperties": False,
    }
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    said = chat(client, response_format=shape, max_tokens=64)
    written = "".join(said.choices[0].message.content.split())  # it may fill its tokens with white space
    assert any(whole.startswith(written) for whole in ('{"x":1}', '{"x":2}'))
    function = {"name": "add", "parameters": schema, "strict": True}
    for tool in ({"type": "function", "function": function}, {"type": "function", **function}):
        route = "responses" if "name" in tool else "chat/completions"
        asked = {"messages": ASK} if route != "responses" else {"input": ASK}
        told = client._client.post(
            f"{client.base_url}{route}",
            headers=client.auth_headers,
            json={"model": "tiny", "tools": [tool], **asked},
        )
        assert told.status_code == 200, told.text
    rows = served.rows(trajectory)
    assert [row.metadata for row in rows] == [{CONSTRAINED: 3}] * 3
    assert trained(rows) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 5),
        ("frequency_penalty", 0.5),
        ("logit_bias", {"5": 1.0}),
        ("temperature", 0.2),
        ("seed", 1),
        ("min_p", 0.1),
        ("best_answer", True),
        ("use_beam_search", True),
        ("truncate_prompt_tokens", 5),
        ("chat_template", "x"),
        ("stream_options.y", {"y": 1}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(served: Served, name: str, value: Any) -> None:
    trajectory, client = served.open()
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body={name.partition(".")[0]: value})
    assert caught.value.param == name
    assert f"'{name}'" in str(caught.value)
    assert trajectory.turns.roots == []


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("completions", {"prompt": "2 + 2 =", "top_p": 0.9}, "top_p"),
        ("completions", {"prompt": "2 + 2 =", "stream_options": {"y": 1}}, "stream_options.y"),
        ("responses", {"input": "2 + 2 =", "top_logprobs": 3}, "top_logprobs"),
        ("responses", {"input": "2 + 2 =", "reasoning": {"effort": "low"}}, "reasoning"),
        ("messages", {"messages": ASK, "max_tokens": 1, "top_k": 5}, "top_k"),
        (
            "messages",
            {"messages": ASK, "max_tokens": 1, "tool_choice": {"type": "any", "x": 1}},
            "tool_choice.x",
        ),
    ],
)
def test_the_other_routes_refuse_by_the_name_too(
    served: Served, route: str, body: dict[str, Any], field: str
) -> None:
    trajectory, client = served.open()
    url = f"{client.base_url}{route}"
    answer = client._client.post(url, headers=client.auth_headers, json={"model": "tiny", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert trajectory.turns.roots == []


def test_fields_that_change_nothing_are_taken(served: Served) -> None:
    trajectory, client = served.open()
    chat(client, temperature=0.7, top_p=1, presence_penalty=0.0, seed=None, user="me", max_tokens=2)
    assert trajectory.sampled > 0


def test_the_fields_inside_objects_are_those_that_vllm_knows(served: Served) -> None:
    """What vLLM's next release adds, or drops, has to be looked at."""
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.generate.base import protocol as base
    from vllm.entrypoints.openai.chat_completion import protocol as chats
    from vllm.sampling_params import StructuredOutputsParams

    def of_vllm(*models: Any) -> set[str]:
        return {one.alias or name for model in models for name, one in model.model_fields.items()}

    def known(route: str, place: str) -> set[str]:
        return {
            name for name, may_be in nested._ROUTES[f"/v1/{route}"][place].items() if may_be == nested.ANY
        }

    chat_route = "chat/completions"
    assert known(chat_route, "stream_options") == of_vllm(base.StreamOptions)
    assert known(chat_route, "response_format.json_schema") == of_vllm(base.JsonSchemaResponseFormat)
    assert known(chat_route, "response_format.structures[]") == of_vllm(base.LegacyStructuralTag)
    formats = (
        base.ResponseFormat, base.StructuralTagResponseFormat, base.LegacyStructuralTagResponseFormat
    )  # fmt: skip
    assert known(chat_route, "response_format") == of_vllm(*formats) - {"type"}
    kept = {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
    constraints = {one.name for one in fields(StructuredOutputsParams) if one.init} - kept
    assert known(chat_route, "structured_outputs") == constraints
    assert known(chat_route, "tools[].function") == of_vllm(base.FunctionDefinition) - {"defer_loading"}
    assert known(chat_route, "tool_choice.function") == of_vllm(chats.ChatCompletionNamedFunction)
    assert known("messages", "tools[]") == of_vllm(anthropic.AnthropicTool) - {"defer_loading"} | {
        "cache_control"
    }
    assert known("messages", "tool_choice") == of_vllm(anthropic.AnthropicToolChoice) - {"type"}


def test_pictures_are_refused(served: Served) -> None:
    _, client = served.open()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    with pytest.raises(openai.BadRequestError, match="only text can be recorded"):
        chat(client, [{"role": "user", "content": [part]}])


def test_a_key_opens_its_trajectory_and_no_other(served: Served) -> None:
    one, client = served.open()
    other, _ = served.open()
    for name, key in (
        (other.id, served.capture.key(one.id)),
        (one.id, "x"),
        ("no-such", served.capture.key("x")),
    ):
        with pytest.raises(openai.AuthenticationError):
            chat(served.client(name, key))
    assert chat(client, max_tokens=1).usage.completion_tokens == 1
    assert other.sampled == 0


@pytest.mark.parametrize(
    "path",
    [
        "metrics",
        "health",
        "v1/load_lora_adapter",
        "v1/chat/completions/batch",
        "tokenize",
        "v1/../metrics",
        "collective_rpc",
    ],
)
def test_other_routes_of_vllms_server_are_not_reachable(served: Served, path: str) -> None:
    trajectory, client = served.open()
    for method in (client._client.get, client._client.post):
        url = f"{served.address}/t/{trajectory.id}/{path}"
        answer = method(url, headers={"authorization": f"Bearer {client.api_key}"})
        assert answer.status_code in (401, 404)
        assert client._client.get(f"{served.address}/{path}").status_code == 404 or path == "health"


def test_what_vllm_itself_refuses_leaves_no_turn(served: Served) -> None:
    trajectory, client = served.open()
    with pytest.raises(openai.BadRequestError):
        chat(client, [{"role": "user", "content": "x " * 400}])
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASK)  # type: ignore[arg-type]
    assert trajectory.turns.roots == []
    assert trajectory._asked == 0


LONGEST = 4096
HOSTILE = [
    b"",
    b"[]",
    b"{",
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b'{"messages": 5, "prompt": {}, "input": 7}',
    b'{"messages": [], "prompt": [], "input": []}',
    b'{"messages": [5], "prompt": [[]], "input": [{}], "max_tokens": 1}',
    b'{"messages": [{"role": "x", "content": [1]}], "max_tokens": 1}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}], "prompt": "\\ud800", "input": "\\ud800"}',
    b'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "n": 100000}',
    b'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": 1e300}',
    b'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "temperature": NaN}',
    b'{"messages": [{"role": "user", "content": "x"}], "prompt": [999999999], "input": "x", "max_tokens": 1}',
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": 1}], "tool_choice": "required"}',
    json.dumps(dict.fromkeys(("messages", "input", "prompt", "tools"), [{}] * 4000)).encode(),
    json.dumps(
        {**dict.fromkeys(("messages", "input"), [{"role": "user"}] * 4000), "prompt": [-1] * 4000}
    ).encode(),
]


def test_no_body_makes_the_server_fail(served: Served) -> None:
    trajectory, client = served.open()
    headers = {"authorization": f"Bearer {client.api_key}", "content-type": "application/json"}
    codes = []
    for route in sorted(ROUTES):
        for body in HOSTILE:
            url = f"{served.address}/t/{trajectory.id}{route}"
            answer = client._client.post(url, content=body, headers=headers)
            codes.append((answer.status_code, route, body[:80]))
            assert len(answer.content) < LONGEST, "not every error is told"
    assert [one for one in codes if one[0] >= 500] == []
    assert trajectory._asked == 0
    assert chat(client, max_tokens=1).choices
