"""Trajectories from their opening to the buffer, over the routes of a real server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from explorers.capture.limits import CaptureLimits
from rft_data.core.filters import Compare
from rft_data.core.words import RolloutEnd
from rft_data.exchange.feedback import feedback_about
from tests.docs.blocks import run_block
from tests.explorers.capture.conftest import TOKEN, Served
from tests.explorers.capture.test_recorder import ASK, chat, trained
from tests.waiting import came

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OWNER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address, trust_env=False, timeout=60) as client:
        yield client


def opened(http: httpx.Client, **body: Any) -> tuple[dict[str, Any], openai.OpenAI, dict[str, str]]:
    answer = http.post("/trajectories", headers=OWNER, json=body)
    assert answer.status_code == 201, answer.text
    one = answer.json()
    client = openai.OpenAI(base_url=one["base_url"], api_key=one["key"], max_retries=0, http_client=http)
    return one, client, {"authorization": f"Bearer {one['key']}"}


def stored(served: Served, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.buffer.read(
        "experiences", where=Compare("group_id", "eq", name)
    ).to_pylist()
    return sorted(found, key=lambda row: int(row["turn"]))


def test_a_trajectory_is_stored_before_its_end_is_answered_and_once(
    served: Served, http: httpx.Client
) -> None:
    task = {"taskset": "sums", "messages": ASK, "answer": "4", "metadata": {"level": 1}}
    one, client, key = opened(http, task=task)
    chat(client, n=2)
    assert http.get(f"/trajectories/{one['id']}", headers=key).json()["turns"] == 2
    http.post(f"/trajectories/{one['id']}/reward", headers=key, json={"reward": 0.25})
    answer = http.post(f"/trajectories/{one['id']}/end", headers=key).json()
    rows = stored(served, one["id"])
    assert [row["experience_id"] for row in rows] == answer["experience_ids"]
    assert [row["reward"] for row in rows] == [None, 0.25]
    assert {row["taskset"] for row in rows} == {"sums"}
    assert rows[-1]["metadata"] == '{"end":"finished","turns":2}'
    assert any(task.answer == "4" for task in served.buffer.tasks())
    again = http.post(f"/trajectories/{one['id']}/end", headers=key).json()
    assert again == answer
    with pytest.raises(openai.AuthenticationError):
        chat(client)


def test_a_reward_that_comes_later_is_feedback_about_the_last_row(served: Served, http: httpx.Client) -> None:
    one, client, key = opened(http)
    chat(client)
    http.post(f"/trajectories/{one['id']}/end", headers=key)
    [row] = stored(served, one["id"])
    assert (row["reward"], row["unscored_reason"]) == (None, None)
    later = http.post(
        f"/trajectories/{one['id']}/reward", headers=OWNER, json={"reward": 1.0, "author": "thumbs"}
    )
    assert later.json() == {"id": one["id"], "stored": True, "experience_id": row["experience_id"]}
    [told] = feedback_about(served.buffer, "reward", [row["experience_id"]]).to_pylist()
    assert (told["value"], told["author"]) == (1.0, "thumbs")


def test_what_its_client_never_ended_is_closed_by_the_deadline(served: Served, http: httpx.Client) -> None:
    one, client, _ = opened(http)
    empty, _, _ = opened(http)
    chat(client)
    served.service.deadline_s = 0.04

    async def passed() -> None:
        keeping = asyncio.create_task(served.service.keep_deadlines())
        await came(lambda: not any(served.capture.find(name) for name in (one["id"], empty["id"])))
        keeping.cancel()

    try:
        served.loop.run(passed())
    finally:
        served.service.deadline_s = 3600.0
    [row] = stored(served, one["id"])
    assert row["reward"] is None
    assert row["unscored_reason"].startswith("timeout: the trajectory: its client did not end it")
    assert f'"end":"{RolloutEnd.DEADLINE}"' in row["metadata"]
    [group] = served.buffer.read("groups", where=Compare("group_id", "eq", empty["id"])).to_pylist()
    assert (group["outcome"], group["error"]) == ("cancelled", "nothing was sampled")


def test_what_is_abandoned_leaves_no_row(served: Served, http: httpx.Client) -> None:
    one, client, key = opened(http)
    chat(client)
    assert (
        http.post(f"/trajectories/{one['id']}/abandon", headers=key, json={"reason": "crashed"}).status_code
        == 200
    )
    assert stored(served, one["id"]) == []
    [group] = served.buffer.read("groups", where=Compare("group_id", "eq", one["id"])).to_pylist()
    assert (group["outcome"], group["error"]) == ("cancelled", "abandoned: crashed")
    for route in ("reward", "end", "abandon"):
        body = {"reward": 1.0} if route == "reward" else {}
        assert http.post(f"/trajectories/{one['id']}/{route}", headers=key, json=body).status_code == 404


def test_only_the_token_opens_and_a_key_speaks_for_its_own(served: Served, http: httpx.Client) -> None:
    one, _, key = opened(http)
    other, _, _ = opened(http)
    assert http.post("/trajectories", headers=key, json={}).status_code == 401
    assert http.post("/trajectories", json={}).status_code == 401
    for route in ("", "/reward", "/end", "/abandon"):
        call = http.get if route == "" else http.post
        more: dict[str, Any] = {"json": {"reward": 1.0}} if route == "/reward" else {}
        assert call(f"/trajectories/{other['id']}{route}", headers=key, **more).status_code == 401
    assert served.capture.find(one["id"]) is not None
    assert served.capture.find(other["id"]) is not None
    assert http.post("/trajectories", headers={"x-api-key": TOKEN}).status_code == 201, "Anthropic's header"
    anthropic = {"x-api-key": served.capture.key(one["id"])}
    assert http.post(f"/trajectories/{one['id']}/end", headers=anthropic).status_code == 200
    assert http.post(f"/trajectories/{other['id']}/end", headers=anthropic).status_code == 401


def test_too_much_at_once_is_refused_with_a_time_to_come_back(served: Served, http: httpx.Client) -> None:
    one, client, _ = opened(http)
    before = served.capture.limits
    try:
        served.capture.limits = replace(before, requests=served.capture.requests or 1, trajectories=1)
        served.capture.requests += 1
        with pytest.raises(openai.RateLimitError) as caught:
            chat(client)
        assert caught.value.response.headers["retry-after"] == "1"
        answer = http.post("/trajectories", headers=OWNER, json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
        served.capture.requests -= 1
        served.capture.limits = replace(before, key_requests=1)
        opened_one = served.capture.find(one["id"])
        assert opened_one is not None
        opened_one.requests += 1
        with pytest.raises(openai.RateLimitError, match="too many requests"):
            chat(client)
        opened_one.requests -= 1
        chat(client)
        served.capture.limits = replace(before, held_tokens=served.capture.held)
        with pytest.raises(
            openai.RateLimitError, match=r"hold \d+ tokens, of at most \d+: end some"
        ) as caught:
            chat(client)
        assert caught.value.response.headers["retry-after"] == "5"
        assert http.post("/trajectories", headers=OWNER, json={}).status_code == 429
        held = served.capture.held
        kept = len(stored_rows := served.rows(opened_one.trajectory)) and len(stored_rows[0].token_ids or ())
        http.post(f"/trajectories/{one['id']}/end", headers=OWNER)
        assert served.capture.held == held - kept, "what has ended is held no more"
        one, client, _ = opened(http)
        served.capture.limits = CaptureLimits(body_bytes=1000, tokens=5)
        with pytest.raises(openai.APIStatusError, match="longer than 1000 bytes"):
            chat(client, [{"role": "user", "content": "x" * 1000}])
        served.capture.limits = before
        chat(client)
        served.capture.find(one["id"]).trajectory.room = 1  # type: ignore[union-attr]
        with pytest.raises(openai.BadRequestError, match=r"holds \d+ tokens, of at most 1"):
            chat(client)
    finally:
        served.capture.limits = before
    assert http.post("/trajectories", headers=OWNER, content=b"x" * 10_001).status_code == 413


def test_a_client_that_goes_away_ends_its_request_and_the_turn_is_not_trained(
    served: Served, http: httpx.Client
) -> None:
    one, client, key = opened(http)
    chat(client, max_tokens=3)
    trajectory = served.capture.find(one["id"])
    assert trajectory is not None
    stream = chat(client, stream=True, max_tokens=200, extra_body={"stop": ["never said"]})
    next(iter(stream))
    stream.close()

    async def over() -> None:
        await came(lambda: served.capture.requests == 0)
        await came(lambda: served.engine.in_flight() == 0)

    served.loop.run(over())
    sampled = list(trajectory.trajectory.turns)
    http.post(f"/trajectories/{one['id']}/end", headers=key, json={"reward": 1})
    rows = stored(served, one["id"])
    if trajectory.trajectory.aborted:  # the random model may have ended its turn in the first steps
        assert len(rows) == len(sampled) == 1
        assert '"aborted_turns":1' in rows[0]["metadata"]


@pytest.mark.heavy
def test_clients_that_come_and_go_are_never_mixed(served: Served) -> None:
    """150 trajectories at once, each with a prompt of its own; a third of the requests is given up."""
    dice = random.Random(5)  # noqa: S311

    async def client(number: int, http: httpx.AsyncClient) -> tuple[str, int]:
        trajectory = served.capture.open()
        url = served.capture.path(trajectory.id) + "/chat/completions"
        headers = {"authorization": f"Bearer {served.capture.key(trajectory.id)}"}
        history: list[dict[str, str]] = [{"role": "user", "content": f"{number} + 0 ="}]
        for _ in range(2):
            body = {"model": "tiny", "messages": history, "max_tokens": 8, "stream": dice.random() < 0.5}
            asking = http.post(url, json=body, headers=headers)
            try:
                answer = await asyncio.wait_for(asking, dice.choice([0.002, 0.05, 60, 60]))
            except (TimeoutError, httpx.HTTPError):
                continue
            assert answer.status_code == 200, answer.text
            if not body["stream"]:
                said = answer.json()["choices"][0]["message"]["content"]
                history += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{number}"}]
        return trajectory.id, number

    async def all_clients() -> list[tuple[str, int]]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=served.address, trust_env=False, timeout=60, limits=limits
        ) as http:
            done = await asyncio.gather(*(client(number, http) for number in range(150)))
        await came(lambda: served.capture.requests == 0 and served.engine.in_flight() == 0)
        return list(done)

    played = served.loop.run(all_clients())
    mixed = lost = 0
    for name, number in played:
        trajectory = served.capture.close(name)
        rows = served.rows(trajectory)
        lost += trained(rows) != sum(len(turn.sampled) for turn in trajectory.turns)
        for row in rows:
            spoken = [one["content"] for one in row.messages if one["role"] == "user"]
            mixed += any(text.split(" ")[0] != str(number) for text in spoken)
            decoded = trajectory.template.tokenizer.decode(row.token_ids)
            mixed += not decoded.startswith(f"<|user|>{number} + 0 =")
        assert trajectory._asked == 0
    assert (mixed, lost) == (0, 0)


def test_the_pages_of_capture_and_of_served_models_show_clients_that_work(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    run = {"http://127.0.0.1:8000": served.address, "Qwen3-4B": "tiny"}
    one = run_block("capture.md", "server = httpx.Client", run, token=TOKEN)["one"]
    assert [row["reward"] for row in stored(served, one["id"])] == [1.0]
    app = run_block("served.md", "def thumb", {"http://127.0.0.1:8009": served.address, '"policy"': '"tiny"'})
    _, visit = app["answer"]("What is 2 + 2?", TOKEN)
    app["thumb"](visit, True)
    assert [row["reward"] for row in stored(served, visit["id"])] == [1.0]
