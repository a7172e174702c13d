"""A reward model behind a server: a real HTTP server that counts what it is asked, and fails on request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from explorers.rewards.registry import built_in_kind, make_reward
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

TASK = Task("t", ({"role": "user", "content": "?"},))


class Server:
    """Scores a conversation by the length of its last message."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.keys: list[str | None] = []
        self.answer: Any = None
        """What to say instead; a number is a status."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["conversations"]
                owner.sizes.append(len(asked))
                owner.keys.append(self.headers["authorization"])
                status = owner.answer if isinstance(owner.answer, int) else 200
                rewards = {"rewards": [len(one[-1]["content"]) for one in asked]}
                told = rewards if owner.answer is None else owner.answer
                data = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/score"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def ask(reward: Any, *texts: str) -> list[Any]:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(reward(TASK, text) for text in texts))

    return asyncio.run(all_at_once())


def test_completions_that_wait_together_are_sent_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "k1\n")
    reward = make_reward("reward_server", {"url": server.url, "batch": 8, "api_key_env": "SERVER_KEY"})
    assert ask(reward, *("x" * n for n in range(20))) == [float(n) for n in range(20)]
    assert sorted(server.sizes) == [4, 8, 8]
    assert set(server.keys) == {"Bearer k1"}


@pytest.mark.parametrize(
    "answer",
    [
        *(500, [], "no", {"rewards": [1.0]}, b"[" * 100_000),
        *({"rewards": [1.0, odd]} for odd in (None, float("nan"), 10**400, {"unscored": "x", "cause": []})),
    ],
)
def test_a_server_that_gives_no_numbers_is_a_failure_of_the_world(server: Server, answer: Any) -> None:
    server.answer = answer
    found = ask(make_reward("reward_server", {"url": server.url}), "a", "b")
    assert all(isinstance(one, Unscored) and one.cause is UnscoredCause.INFRASTRUCTURE for one in found)


def test_a_key_that_a_server_echoes_is_in_no_reason(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "s3cret-key")
    server.answer = {"error": "not Bearer s3cret-key"}
    reward = make_reward("reward_server", {"url": server.url, "api_key_env": "SERVER_KEY"})
    found = asyncio.run(reward(TASK, "a"))
    assert "not Bearer ***" in found.reason


def test_a_server_that_is_away_is_one_too() -> None:
    (found,) = ask(make_reward("reward_server", {"url": "http://127.0.0.1:9/score"}), "a")
    assert isinstance(found, Unscored)
    assert found.cause is UnscoredCause.INFRASTRUCTURE


def test_what_cannot_be_sent_is_told_at_once_and_not_at_the_deadline(server: Server) -> None:
    odd = Task("t", ({"role": "user", "content": {"a set": {1}}},))

    async def asked() -> Any:
        return await asyncio.wait_for(make_reward("reward_server", {"url": server.url})(odd, "a"), 10)

    with pytest.raises(TypeError, match="set is not JSON serializable"):
        asyncio.run(asked())


def test_a_mistake_is_an_error_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for args in (
        {"url": "localhost"},
        {"url": "http://"},
        {"url": "http://[1/score"},
        {"url": "http://x", "batch": 0},
        {"url": "http://x", "api_key_env": "NO_SUCH_KEY"},
    ):
        with pytest.raises(RecipeError, match=r"url is|Invalid IPv6|NO_SUCH_KEY"):
            make_reward("reward_server", args)
    kind = built_in_kind("reward_server")
    assert kind is not None
    assert (kind.asynchronous, kind.deadline_s) == (True, 60.0)
