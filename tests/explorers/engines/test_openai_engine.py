"""The engine `openai` against a real HTTP server that answers, and fails, as endpoints do."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorers.engines import openai_engine
from explorers.engines.endpoint_options import endpoint_options
from explorers.engines.openai_engine import OpenaiEngine
from ops.endpoint.pace import Pace
from rft_data.core.engine import ChatCompletion, Sampling
from rft_data.core.errors import (
    ContextOverflow,
    EndpointError,
    EngineError,
    IntegrityError,
    ParityError,
    RecipeError,
    RowError,
)
from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from tests.explorers.engines.chat_server import ChatServer, completion, engine_at, version_of
from tests.ops.judge_server import CUT, Answer, status
from tests.ports import free_port
from tests.waiting import LIMIT_S, came

ASK = [{"role": "user", "content": "2 + 2 ="}]
Asked = Callable[..., ChatCompletion]


@pytest.fixture(autouse=True)
def quick_and_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between tries; no proxy between here and here."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def ask(engine: OpenaiEngine, messages: Any = ASK, tools: Any = None, **sampling: Any) -> ChatCompletion:
    try:
        return asyncio.run(engine.chat(messages, tools, Sampling(**{"max_tokens": 8, **sampling})))
    finally:
        engine.close()


def test_what_is_asked_and_what_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "for-another-endpoint")
    monkeypatch.setenv("RFT_TEST_KEY", "s3cret-key")
    said = [
        *ASK,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"n": "ü"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "4"},
    ]
    with ChatServer(lambda *_: completion(content="4", reasoning="two twos")) as server:
        engine = engine_at(server, tmp_path, api_key_env="RFT_TEST_KEY", request={"seed": 5})
        answer = ask(engine, said, [{"name": "add"}], temperature=0.5, stop=("\n",), min_tokens=2)
    [body] = server.requests
    assert body["messages"][1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"n": "ü"}'}}
        ],
    }
    assert body["tools"] == [{"type": "function", "function": {"name": "add"}}]
    wanted = {"model": "m", "max_tokens": 8, "temperature": 0.5, "stop": ["\n"], "min_tokens": 2, "seed": 5}
    assert {name: body[name] for name in wanted} == wanted
    assert server.headers[0]["Authorization"] == "Bearer s3cret-key"
    assert "for-another-endpoint" not in json.dumps([server.headers, server.requests])
    assert answer.message == {"role": "assistant", "content": "4", "reasoning_content": "two twos"}
    assert (answer.prompt_tokens, answer.completion_tokens, answer.served_by) == (7, 3, "m-2026-11")


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure",
    [
        status(429, retry_after="0"),
        status(500),
        (CUT, b"", {}),
        (200, b"<html>busy</html>", {}),
        (200, {"error": {"message": "overloaded"}}, {}),
        (200, b'{"choices": [{"message": {"content": "4"}}], "usage": {"total_tokens": 1e999}}', {}),
    ],
    ids=["rate limit", "500", "cut off", "html", "error as an answer", "infinitely many tokens"],
)
def test_what_may_pass_is_tried_again_and_then_is_infrastructure(tmp_path: Path, failure: Answer) -> None:
    with ChatServer(lambda _, number: failure if number < 2 else completion(content="4")) as server:
        assert ask(engine_at(server, tmp_path, limits={"retries": 2})).message["content"] == "4"
        server._chat_answer = lambda *_: failure
        with pytest.raises(ConnectionError):
            ask(engine_at(server, tmp_path, limits={"retries": 1}))
    assert len(server.requests) == 5


def test_a_late_answer_is_a_time_out_and_a_closed_port_is_infrastructure(tmp_path: Path) -> None:
    with (
        ChatServer(lambda *_: completion(content="4"), delay_s=0.5) as server,
        pytest.raises(TimeoutError, match=r"no reply within 0\.05 s"),
    ):
        ask(engine_at(server, tmp_path, limits={"retries": 0, "timeout_s": 0.05}))
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(ConnectionError, match="ConnectError"):
        ask(engine_at(url, tmp_path, limits={"retries": 0}))


@pytest.mark.parametrize(
    "message", [{}, {"content": None}, {"content": 5}, {"content": "", "tool_calls": "x"}]
)
def test_an_answer_that_says_nothing_is_no_empty_completion(tmp_path: Path, message: dict[str, Any]) -> None:
    """agent-lightning#308: nothing was captured, and the reward was set to 0."""
    with (
        ChatServer(lambda *_: completion(**message)) as server,
        pytest.raises(ConnectionError, match="no chat completion"),
    ):
        ask(engine_at(server, tmp_path, limits={"retries": 0}))


def test_what_an_answer_says_can_be_stored_and_sent_again(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a\ud800"}, {"type": "text", "text": None}]
    call = {"id": "b\ud800", "function": {"name": "add", "arguments": '{"n": "\\ud800"}'}}
    odd = completion(content=parts, reasoning="c\ud800", tool_calls=[call])
    with ChatServer(lambda *_: odd) as server:
        message = ask(engine_at(server, tmp_path)).message
        ask(engine_at(server, tmp_path), [*ASK, message])
    json.dumps(message, ensure_ascii=False).encode()
    assert (message["content"], message["reasoning_content"]) == ("a?", "c?")
    [called] = message["tool_calls"]
    assert called["id"] == "b?"
    assert called["function"]["arguments"] == '{"n": "\\ud800"}', "malformed, and kept as it came"


def test_thinking_up_to_the_last_token_is_an_empty_answer_of_the_model(tmp_path: Path) -> None:
    with ChatServer(lambda *_: completion("length", content=None)) as server:
        answer = ask(engine_at(server, tmp_path))
    assert (answer.message["content"], answer.finish_reason) == ("", "length")


def test_a_withheld_answer_is_no_answer_of_the_model(tmp_path: Path) -> None:
    with (
        ChatServer(lambda *_: completion("content_filter", content="I")) as server,
        pytest.raises(RowError, match="content filter withheld"),
    ):
        ask(engine_at(server, tmp_path))


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (status(401), EndpointError, r"refuses the model 'm' \(status 401.*'api_key_env' \(no key is sent\)"),
        (status(404), EndpointError, "correct the model's name"),
        (status(307, location="http://127.0.0.1:9/v1"), EndpointError, "status 307"),
        (status(422), RowError, "refused the conversation: status 422"),
        (
            (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, {}),
            ContextOverflow,
            "no room for the conversation",
        ),
    ],
)
def test_a_refusal_is_not_tried_again(
    tmp_path: Path, failure: Answer, error: type[Exception], message: str
) -> None:
    with ChatServer(lambda *_: failure) as server, pytest.raises(error, match=message):
        ask(engine_at(server, tmp_path))
    assert len(server.requests) == 1


def test_a_key_is_in_no_error_no_log_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RFT_TEST_KEY", "s3cret-key\n")
    caplog.set_level(logging.DEBUG)
    echo = b'{"error": "Incorrect API key provided: s3cret-key"}'
    with ChatServer(lambda *_: (401, echo, {})) as server:
        engine = engine_at(server, tmp_path, api_key_env="RFT_TEST_KEY")
        with pytest.raises(EndpointError, match=r"provided: \*\*\*.*the key in 'RFT_TEST_KEY'") as caught:
            ask(engine)
    said = [str(caught.value), str(caught.value.__cause__), repr(vars(engine).get("_served")), caplog.text]
    assert not any("s3cret" in text for text in said)


def test_a_missing_key_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"the endpoint's key must be in .* 'RFT_NO_SUCH_KEY', which is not set"
    ):
        engine_at("http://127.0.0.1:9/v1", tmp_path, api_key_env="RFT_NO_SUCH_KEY")


def test_calls_tokens_and_cost_are_counted(tmp_path: Path) -> None:
    def answer(_: Any, number: int) -> Answer:
        return [status(500), completion(content="4"), completion(content="4", usage=None)][number]

    with ChatServer(answer) as server:
        engine = engine_at(server, tmp_path, price={"input": 1_000_000, "output": 2_000_000})

        async def two() -> None:
            for _ in range(2):
                await engine.chat(ASK, None, Sampling(8))

        asyncio.run(two())
    assert engine.metrics() == {
        "endpoint_calls": 3.0,
        "endpoint_completion_tokens": 3.0,
        "endpoint_cost": 7.0 + 2 * 3.0,
        "endpoint_prompt_tokens": 7.0,
        "endpoint_uncounted": 1.0,
    }
    assert engine.metrics() == {"endpoint_calls": 0.0, "endpoint_cost": 0.0}


def test_a_spent_budget_and_long_silence_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer(lambda *_: completion(content="4")) as server:
        engine = engine_at(server, tmp_path, limits={"max_calls": 1})

        async def two() -> None:
            for _ in range(2):
                await engine.chat(ASK, None, Sampling(8))

        with pytest.raises(EndpointError, match="the budget of 1 calls is spent"):
            asyncio.run(two())
        server._chat_answer = lambda *_: status(503)
        monkeypatch.setattr(openai_engine, "_NONE_ANSWERED", 2)
        engine = engine_at(server, tmp_path, limits={"retries": 0})

        async def silence() -> None:
            with pytest.raises(ConnectionError):
                await engine.chat(ASK, None, Sampling(8))
            await engine.chat(ASK, None, Sampling(8))

        with pytest.raises(EndpointError, match="answered none of 2 calls, the last: status 503"):
            asyncio.run(silence())


def test_an_answer_ends_a_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_engine, "_NONE_ANSWERED", 2)
    with ChatServer(lambda _, number: completion(content="4") if number % 2 else status(503)) as server:
        engine = engine_at(server, tmp_path, limits={"retries": 0})

        async def every_other() -> None:
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    await engine.chat(ASK, None, Sampling(8))
                await engine.chat(ASK, None, Sampling(8))

        asyncio.run(every_other())
    assert len(server.requests) == 4


def test_an_endpoint_that_counts_no_tokens_has_a_budget_all_the_same(tmp_path: Path) -> None:
    with ChatServer(lambda *_: completion(content="4 " * 40, usage=None)) as server:
        engine = engine_at(server, tmp_path, limits={"max_total_tokens": 100, "tokens_per_minute": 1000})

        async def asked() -> None:
            for _ in range(5):
                await engine.chat(ASK, None, Sampling(8))

        with pytest.raises(EndpointError, match="the budget of 100 tokens is spent"):
            asyncio.run(asked())
    assert len(server.requests) in (3, 4)
    assert engine._spending.pace._bookings[0].tokens > 20, "and they count in their minute"


def test_calls_keep_to_the_bound_of_those_at_once_and_leave_when_cancelled(tmp_path: Path) -> None:
    gate = threading.Event()
    with ChatServer(lambda *_: gate.wait(LIMIT_S) and completion(content="4")) as server:
        engine = engine_at(server, tmp_path, limits={"concurrency": 2})

        async def many() -> None:
            calls = [asyncio.create_task(engine.chat(ASK, None, Sampling(8))) for _ in range(3)]
            await came(lambda: len(server.requests) == 2)
            calls[2].cancel()
            await asyncio.gather(calls[2], return_exceptions=True)
            gate.set()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(one) for one in done] == [ChatCompletion, ChatCompletion, asyncio.CancelledError]

        asyncio.run(many())
    assert len(server.requests) == 2
    assert engine.metrics()["endpoint_cancelled"] == 1.0


def test_tries_and_tokens_of_any_window_keep_to_their_bounds() -> None:
    async def moments(pace: Pace, tokens: int | None) -> list[float]:
        loop, found = asyncio.get_running_loop(), []
        began = loop.time()

        async def one() -> None:
            await (pace.next_try() if tokens is None else pace.book(tokens))
            found.append(loop.time() - began)

        await asyncio.gather(*(one() for _ in range(5)))
        return found

    for pace, tokens in ((Pace(2, None, window_s=0.05), None), (Pace(None, 20, window_s=0.05), 9)):
        at = asyncio.run(moments(pace, tokens))
        assert [moment >= 0.05 * (place // 2) for place, moment in enumerate(at)] == [True] * 5


def test_tokens_that_a_call_did_not_take_are_free_again_and_a_giant_goes_alone() -> None:
    async def play() -> float:
        pace, loop = Pace(None, 20, window_s=5.0), asyncio.get_running_loop()
        began = loop.time()
        (await pace.book(500)).tokens = 1
        await pace.book(19)
        return loop.time() - began

    assert asyncio.run(play()) < 1.0


def test_what_asks_for_token_ids_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"takes messages and gives no token ids.*use `model\.chat`"):
        asyncio.run(engine_at("http://127.0.0.1:9/v1", tmp_path).generate([1], Sampling(8)))


def test_only_a_version_that_names_a_model_at_this_endpoint_is_served(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    engine = OpenaiEngine(Path("m"), options={"base_url": url})
    with pytest.raises(ParityError, match="was told no model"):
        _ = engine.version
    assert asyncio.run(engine.swap_weights(version_of(tmp_path / "v0", url, "other/model"))) == 0.0
    assert (engine.version, engine.endpoint) == (0, {"base_url": url, "model": "other/model"})
    with pytest.raises(EngineError, match="is a model at http://elsewhere/v1"):
        engine.load_weights(version_of(tmp_path / "v1", "http://elsewhere/v1"))
    (tmp_path / "v2").mkdir()
    write_manifest(tmp_path / "v2", {"run_id": "run", "version": 2, "step": 0})
    with pytest.raises(IntegrityError, match="names no model at an endpoint"):
        engine.load_weights(WeightRef("run", 2, 0, str(tmp_path / "v2")))


URL = {"base_url": "http://h/v1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "base_url is None; wanted http"),
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'"),
        ({"base_url": "https://me:pw@h/v1"}, "base_url is holding a user"),
        ({**URL, "model": "m"}, "options.model is no option"),
        ({**URL, "api_key_env": "sk-123"}, "no name of an environment variable"),
        ({**URL, "request": {"top_p": 0.9}}, r"request is setting \['top_p'\]"),
        ({**URL, "request": 3}, "wanted fields of a request"),
        ({**URL, "length_field": "tokens"}, "length_field is 'tokens'"),
        ({**URL, "price": {"input": 1}}, "wanted 'input' and 'output'"),
        ({**URL, "price": {"input": 1, "output": float("nan")}}, "numbers per million"),
        ({**URL, "limits": {"rpm": 3}}, r"\['rpm'\]; known limits: .*requests_per_minute"),
        ({**URL, "limits": {"deadline_s": 3}}, "deadline_s"),
        ({**URL, "limits": {"requests_per_minute": 0}}, "requests_per_minute and tokens_per_minute >= 1"),
        ({**URL, "limits": {"retries": "many"}}, "not possible"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        endpoint_options(options)
