"""The judge's client against a real HTTP server that fails in every way endpoints do."""

import asyncio
import json
import sys
import threading
from types import SimpleNamespace

import pytest

from ops.endpoint.calls import CallLimits
from ops.judge import judge_cache, judge_client
from ops.judge.judge_cache import JudgeCache
from ops.judge.judge_client import JudgeClient
from ops.judge.judge_reply import Reply
from rft_data.core.errors import MissingExtraError, OperatorError
from tests.ops.judge_server import JudgeServer, said, status
from tests.ports import free_port


@pytest.fixture(autouse=True)
def quick_and_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between tries; no proxy between here and here."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def client_of(server, cache=None, sampling=None, api_key_env=None, **limits):
    return JudgeClient(
        server if isinstance(server, str) else server.base_url,
        "judge-1",
        sampling={"temperature": 0.0} if sampling is None else sampling,
        limits=CallLimits(**limits),
        cache=JudgeCache(None if cache is None else str(cache)),
        api_key_env=api_key_env,
    )


@pytest.mark.slow
def test_equal_prompts_are_asked_once_and_order_is_kept():
    with JudgeServer(lambda prompt, _: said(prompt.upper())) as server:
        client = client_of(server)
        prompts = ["b", "a", "b", "b", "c"]
        assert client.ask_all(prompts) == [Reply(prompt.upper()) for prompt in prompts]
        assert client.ask_all(["a"]) == [Reply("A")]
        assert client.ask_all([]) == []
    assert sorted(body["messages"][0]["content"] for body in server.requests) == ["a", "b", "c"]
    assert server.requests[0]["model"] == "judge-1"
    assert server.requests[0]["temperature"] == 0.0
    assert (client.spending.calls, client.spending.tokens) == (3, 30)


@pytest.mark.slow
def test_calls_run_side_by_side_up_to_the_bound():
    four = threading.Barrier(4)

    def answer(prompt, _):
        four.wait(timeout=60)  # nobody is answered before four are asking
        return said(prompt)

    with JudgeServer(answer) as server:
        replies = client_of(server, concurrency=4).ask_all([str(n) for n in range(24)])
    assert not any(reply.error for reply in replies)
    assert server.most_in_flight == 4


@pytest.mark.slow
@pytest.mark.parametrize("code", [429, 500, 503, 408])
def test_what_may_pass_is_tried_again(code):
    def answer(prompt, number):
        return status(code) if number < 2 else said("ok")

    with JudgeServer(answer) as server:
        client = client_of(server, retries=2)
        assert client.ask_all(["x"]) == [Reply("ok")]
    assert client.spending.calls == len(server.requests) == 3


@pytest.mark.slow
def test_a_pause_the_server_asks_for_is_kept(monkeypatch: pytest.MonkeyPatch):
    slept = []

    async def recorded(seconds):
        slept.append(seconds)

    monkeypatch.setattr("anyio.sleep", recorded)
    with JudgeServer(lambda _, n: status(429, retry_after="7") if n == 0 else said("ok")) as server:
        assert client_of(server).ask_all(["x"]) == [Reply("ok")]
    assert slept == [7.0]


@pytest.mark.slow
def test_what_will_not_pass_is_not_tried_again():
    with JudgeServer(lambda *_: status(401)) as server:
        (reply,) = client_of(server).ask_all(["x"])
    assert reply.error.startswith('status 401: {"error"')
    assert len(server.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [b"<html>busy</html>", {"choices": []}, [1], {"choices": [{"message": None}]}]
)
def test_an_answer_that_is_no_completion_is_an_error_after_the_tries(content):
    with JudgeServer(lambda *_: (200, content, {})) as server:
        (reply,) = client_of(server, retries=1).ask_all(["x"])
    assert reply.error.startswith("the answer is no chat completion")
    assert len(server.requests) == 2


@pytest.mark.slow
def test_a_slow_answer_times_out_and_the_batch_has_a_deadline():
    with JudgeServer(lambda prompt, _: said("late"), delay_s=1.0) as server:
        (reply,) = client_of(server, timeout_s=0.1, retries=1).ask_all(["x"])
        assert reply.error == "no reply within 0.1 s"
        replies = client_of(server, deadline_s=0.2, concurrency=1).ask_all(["y", "z"])
    assert {reply.error for reply in replies} == {"no reply within the batch's 0.2 s"}


def test_a_refused_connection_is_an_error_that_names_it():
    url = f"http://127.0.0.1:{free_port()}/v1"
    (reply,) = client_of(url, retries=1).ask_all(["x"])
    assert reply.error.startswith("ConnectError")


@pytest.mark.slow
def test_one_failure_does_not_touch_the_others_and_is_remembered_for_a_while():
    with JudgeServer(lambda prompt, _: status(400) if prompt == "bad" else said(prompt)) as server:
        client = client_of(server)
        first = client.ask_all(["a", "bad", "b"])
        again = client.ask_all(["bad"])
    assert [reply.text for reply in first] == ["a", "", "b"]
    assert again == [first[1]]
    assert len(server.requests) == 3


@pytest.mark.slow
def test_after_a_while_a_failure_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judge_client, "_REMEMBERED_S", 0.0)
    with JudgeServer(lambda _, number: status(400) if number == 0 else said("ok")) as server:
        client = client_of(server)
        assert client.ask_all(["x"])[0].error
        assert client.ask_all(["x"]) == [Reply("ok")]


@pytest.mark.slow
def test_failures_of_a_batch_that_took_long_are_remembered_from_its_end(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(judge_client, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def answer(*_):
        clock[0] += 0.9 * judge_client._REMEMBERED_S
        return status(400)

    with JudgeServer(answer) as server:
        client = client_of(server, concurrency=1)
        first = client.ask_all(["a", "b", "c", "d"])
        assert [reply for prompt in "abcd" for reply in client.ask_all([prompt])] == first
        assert all(reply.error.startswith("status 400") for reply in first)
        assert len(server.requests) == 4


@pytest.mark.slow
def test_budgets_end_the_calls_and_say_so():
    with JudgeServer(lambda prompt, _: said(prompt, tokens=100)) as server:
        replies = client_of(server, max_calls=2).ask_all(["a", "b", "c"])
        assert sorted(reply.error for reply in replies) == ["", "", "the budget of 2 calls is spent"]
        replies = client_of(server, max_total_tokens=150, concurrency=1).ask_all(["d", "e", "f"])
    assert sorted(reply.error for reply in replies) == ["", "", "the budget of 150 tokens is spent"]
    assert len(server.requests) == 4


@pytest.mark.slow
def test_a_spent_budget_ends_the_tries_of_a_call_too():
    with JudgeServer(lambda *_: status(500)) as server:
        (reply,) = client_of(server, max_calls=2, retries=5).ask_all(["a"])
    assert (reply.error, len(server.requests)) == ("the budget of 2 calls is spent", 2)


@pytest.mark.slow
def test_a_redirect_is_not_followed():
    with JudgeServer(lambda *_: status(307, location="http://127.0.0.1:9/v1")) as server:
        (reply,) = client_of(server).ask_all(["a"])
    assert reply.error.startswith("status 307")


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    for module in ("ops.judge.judge_endpoint", "ops.endpoint.endpoint"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"asking a judge needs the package 'openai'.*\[ops\]"):
        client_of("http://127.0.0.1:9/v1").ask_all(["x"])


@pytest.mark.slow
def test_a_restart_asks_nothing_that_was_answered(tmp_path):
    with JudgeServer(lambda prompt, _: status(500) if prompt == "c" else said(prompt * 2)) as server:
        first = client_of(server, tmp_path / "deep" / "judge.db", retries=0)
        assert [reply.text for reply in first.ask_all(["a", "b", "c"])] == ["aa", "bb", ""]
        asked = len(server.requests)
        second = client_of(server, tmp_path / "deep" / "judge.db", retries=0)
        assert second.ask_all(["b", "a"]) == [Reply("bb"), Reply("aa")]
        assert (len(server.requests), second.spending.calls) == (asked, 0)
        hotter = client_of(server, tmp_path / "deep" / "judge.db", sampling={"temperature": 1.0})
        hotter.ask_all(["a"])
        assert len(server.requests) == asked + 1


@pytest.mark.slow
def test_another_endpoint_is_asked_anew_although_its_model_has_the_same_name(tmp_path):
    cache = tmp_path / "judge.db"
    with JudgeServer(lambda *_: said("one")) as first, JudgeServer(lambda *_: said("two")) as second:
        assert client_of(first, cache).ask_all(["a"]) == [Reply("one")]
        assert client_of(second, cache).ask_all(["a"]) == [Reply("two")]
        assert client_of(first.base_url + "/", cache).ask_all(["a"]) == [Reply("one")]
    assert len(first.requests) == 1


def test_a_cache_without_a_file_forgets_the_oldest_replies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judge_cache, "_IN_MEMORY", 3)
    cache = JudgeCache(None)
    with cache.adding() as add:
        for key in "abcde":
            add(key, key.upper(), 1)
    assert cache.find(list("abcde")) == {"c": "C", "d": "D", "e": "E"}


def test_many_keys_and_several_processes_worth_of_writers_share_a_cache(tmp_path):
    path = str(tmp_path / "judge.db")

    def write(first):
        cache = JudgeCache(path)
        with cache.adding() as add:
            for number in range(first, first + 60):
                add(f"key{number}", f"text{number}", 1)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 30, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [f"key{number}" for number in range(1200)]
    assert JudgeCache(path).find(keys) == {f"key{n}": f"text{n}" for n in range(120)}


@pytest.mark.slow
def test_the_key_is_read_from_the_environment_by_name(monkeypatch: pytest.MonkeyPatch):
    with JudgeServer(lambda *_: said("ok")) as server:
        client = client_of(server, api_key_env="RFT_TEST_JUDGE_KEY")
        with pytest.raises(
            OperatorError, match="environment variable 'RFT_TEST_JUDGE_KEY', which is not set"
        ):
            client.ask_all(["x"])
        monkeypatch.setenv("RFT_TEST_JUDGE_KEY", "s3cret")
        client.ask_all(["x"])
    headers = {name.lower(): value for name, value in server.headers[0].items()}
    assert headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in json.dumps(server.requests)


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["", "\n", " \r\n"])
@pytest.mark.parametrize("code", [401, 200])
def test_a_key_that_is_echoed_is_in_no_error(monkeypatch: pytest.MonkeyPatch, padding, code):
    secret = "sk-" + "S3cret" * 40  # longer than what is quoted: cutting it is not hiding it
    monkeypatch.setenv("RFT_TEST_JUDGE_KEY", secret + padding)

    def answer(*_):
        sent = server.headers[-1]["Authorization"].removeprefix("Bearer ")
        return code, f'{{"error": "Incorrect API key provided: {sent}"}}'.encode(), {}

    with JudgeServer(answer) as server:
        (reply,) = client_of(server, api_key_env="RFT_TEST_JUDGE_KEY", retries=0).ask_all(["x"])
    assert "S3cret" not in reply.error
    assert reply.error.endswith('{"error": "Incorrect API key provided: ***"}')


@pytest.mark.parametrize("key", ["sk-S\u00c9CRET", "sk-SE\nCRET", "sk-SE\x01CRET"])
def test_a_key_that_no_header_can_hold_is_refused_without_naming_it(monkeypatch: pytest.MonkeyPatch, key):
    monkeypatch.setenv("RFT_TEST_JUDGE_KEY", key)
    with pytest.raises(OperatorError, match="'RFT_TEST_JUDGE_KEY' has characters that no key has") as caught:
        client_of("http://127.0.0.1:9/v1", api_key_env="RFT_TEST_JUDGE_KEY").ask_all(["x"])
    assert "sk-" not in str(caught.value)
    assert "CRET" not in str(caught.value)


@pytest.mark.slow
def test_what_the_library_finds_in_the_environment_is_not_sent(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "for-another-endpoint")
    with JudgeServer(lambda *_: said("ok")) as server:
        assert client_of(server).ask_all(["x"]) == [Reply("ok")]
    assert "Authorization" not in server.headers[0]
    assert "for-another-endpoint" not in json.dumps(server.headers)


def test_a_key_of_white_space_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RFT_TEST_JUDGE_KEY", " \n")
    with pytest.raises(OperatorError, match="which is not set"):
        client_of("http://127.0.0.1:9/v1", api_key_env="RFT_TEST_JUDGE_KEY").ask_all(["x"])


@pytest.mark.slow
def test_it_works_inside_a_running_event_loop():
    async def inside(server):
        return client_of(server).ask_all(["x"])

    with JudgeServer(lambda *_: said("ok")) as server:
        assert asyncio.run(inside(server)) == [Reply("ok")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server": "localhost:8000"}, "base_url is 'localhost:8000'"),
        ({"server": "http://h/v1", "sampling": {"model": "x"}}, r"sampling sets \['model'\]"),
        ({"server": "http://h/v1", "concurrency": 0}, "concurrency >= 1"),
        ({"server": "http://h/v1", "deadline_s": 0.0}, "deadline_s > 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        client_of(**change)
