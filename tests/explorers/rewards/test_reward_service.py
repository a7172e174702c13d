"""A reward model behind HTTP, asked by the real reward `reward_server`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from explorers.rewards import reward_service
from explorers.rewards.conversation_scorer import Conversation, ConversationScorer
from explorers.rewards.registry import make_reward
from explorers.rewards.reward_service import RewardService
from rft_data.core.errors import BusyError, Stopped
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import load_tokenizer
from trainers.offline.reward_model import load_scorer

TASK = Task("t", ({"role": "user", "content": "?"},))
TOKEN = "a token"  # noqa: S105


class Lengths:
    """Scores a conversation by the length of its last message; `hold` keeps it waiting."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.hold.set()
        self.called = threading.Event()

    def scores(self, conversations: Sequence[Conversation]) -> list[float | Unscored]:
        self.called.set()
        self.hold.wait(20)
        texts = [str(one[-1]["content"]) for one in conversations]
        if "fails" in texts:
            raise RuntimeError("out of memory")
        return [Unscored("too long") if text == "long" else float(len(text)) for text in texts]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[RewardService]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
    with RewardService(Lengths(), TOKEN, host="127.0.0.1", port=0, requests=1) as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


def client(service: RewardService, **args: Any) -> Any:
    return make_reward("reward_server", {"url": service.url, "api_key_env": "SERVICE_TOKEN", **args})


def ask(reward: Any, *texts: str) -> list[Any]:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(reward(TASK, text) for text in texts))

    return asyncio.run(all_at_once())


def post(service: RewardService, content: bytes, **headers: str) -> httpx2.Response:
    return httpx2.post(service.url, content=content, headers={"Authorization": f"Bearer {TOKEN}", **headers})


def test_client_gets_a_score_or_a_reason_for_each_completion(service: RewardService) -> None:
    found = ask(client(service), "a", "long", "four")
    assert found == [1.0, Unscored("too long", UnscoredCause.REWARD), 4.0]


def test_a_model_that_fails_is_a_failure_of_the_world(service: RewardService) -> None:
    (found,) = ask(client(service), "fails")
    assert isinstance(found, Unscored)
    assert found.cause is UnscoredCause.INFRASTRUCTURE
    assert "out of memory" in found.reason


@pytest.mark.slow
def test_a_full_server_says_when_to_come_back_and_the_client_does(service: RewardService) -> None:
    scorer = service.scorer
    assert isinstance(scorer, Lengths)
    scorer.hold.clear()
    first: list[Any] = []
    waiting = threading.Thread(target=lambda: first.extend(ask(client(service), "held")))
    waiting.start()
    assert scorer.called.wait(20)
    refused = post(service, json.dumps({"conversations": []}).encode())
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    threading.Timer(0.3, scorer.hold.set).start()
    assert ask(client(service), "later") == [5.0]
    waiting.join(20)
    assert first == [4.0]


def test_requests_that_are_not_understood_get_a_reason(service: RewardService) -> None:
    for body in (b"{", b"[]", b'{"conversations": [[]]}', b'{"conversations": ["hi"]}'):
        answer = post(service, body)
        assert answer.status_code == 400
        assert "wanted" in answer.json()["error"]
    assert post(service, b"{}", Authorization="Bearer other").status_code == 401
    assert httpx2.post(service.url, content=b"{}").status_code == 401
    elsewhere = httpx2.post(
        service.url.replace("/score", "/"), content=b"{}", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    assert elsewhere.status_code == 404
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("explorers.rewards.reward_service._BODY_BYTES", 10)
        assert post(service, b"x" * 11).status_code == 413


def told(service: RewardService, head: bytes) -> bytes:
    """The answer to the head of a request, byte for byte."""
    with socket.create_connection(service.server_address[:2], timeout=20) as connection:
        connection.sendall(head)
        return b"".join(iter(partial(connection.recv, 4096), b""))


def test_a_length_of_thousands_of_digits_is_only_too_large(service: RewardService) -> None:
    head = b"POST /score HTTP/1.0\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"
    assert told(service, head).startswith(b"HTTP/1.0 413 ")


def test_a_thread_that_cannot_be_started_costs_its_own_request_only(
    service: RewardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        refused = [
            told(service, b"POST /score HTTP/1.0\r\n\r\n") for _ in range(reward_service._CONNECTIONS + 1)
        ]
    assert {one.split(b"\r\n")[0] for one in refused} == {b"HTTP/1.0 429 Too Many Requests"}
    assert ask(client(service), "later") == [5.0], "each gave its place back"


def test_a_port_that_is_taken_is_busy(service: RewardService) -> None:
    service_port = service.server_address[1]
    with pytest.raises(BusyError, match="give another --port or --host"):
        RewardService(Lengths(), TOKEN, host="127.0.0.1", port=int(service_port))


@pytest.mark.heavy
def test_command_serves_a_reward_model_until_it_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_tiny_model(tmp_path, seed=3)
    torch.manual_seed(0)
    load_scorer(tmp_path).save_pretrained(tmp_path / "scorer")
    load_tokenizer(tmp_path).save_pretrained(tmp_path / "scorer")
    monkeypatch.setenv("RFT_REWARD_TOKEN", TOKEN)
    command = [sys.executable, "-m", "rft_data.cli.app", "reward-server", str(tmp_path / "scorer")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        reward = make_reward("reward_server", {"url": url, "api_key_env": "RFT_REWARD_TOKEN"})
        found = ask(reward, "It is so.", "Who can tell?")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == Stopped.exit_code
    conversations = [
        [*TASK.messages, {"role": "assistant", "content": text}] for text in ("It is so.", "Who can tell?")
    ]
    assert found == pytest.approx(
        ConversationScorer(str(tmp_path / "scorer"), "cpu", 2).scores(conversations)
    )
