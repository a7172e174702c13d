"""Clients of a server: many at once, some of which go away, and what they were told."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.capture.servers import TOKEN

_OK, _UNKNOWN = 200, 401
OWNER = {"authorization": f"Bearer {TOKEN}"}


@dataclass(slots=True)
class Told:
    """Knowledge of the clients at the end."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    """Trajectories whose end was answered, and the number that each speaks of."""
    opened: set[str] = field(default_factory=set)
    tokens: Counter[str] = field(default_factory=Counter)
    """Tokens of whole answers, by trajectory."""
    failed: int = 0
    """Requests that failed though their client waited and the server was there."""
    over: int = 0
    """Trajectories that clients are done with."""


async def asked_tokens(http: httpx.AsyncClient, place: tuple[str, str], number: int, tokens: int) -> int:
    """Tokens of the answer to one chat request; `place`: base URL and key."""
    url, key = place
    body = {"model": "tiny", "max_tokens": tokens, "messages": _ask(number)}
    headers = {"authorization": f"Bearer {key}"}
    answer = await http.post(f"{url}/chat/completions", json=body, headers=headers)
    return int(answer.raise_for_status().json()["usage"]["completion_tokens"])


async def opened(address: str) -> dict[str, Any]:
    """A new trajectory."""
    async with client(address, 1, OWNER) as http:
        answer: dict[str, Any] = (await http.post("/trajectories", json={})).raise_for_status().json()
        return answer


async def come_and_go(address: str, told: Told, trajectories: int, seed: int, at_once: int) -> None:
    """So many trajectories of two turns each; of the requests a quarter is given up at a random time, and of
    the streams another one is left after a piece. A client whose server is killed gives its trajectory up."""
    gate, dice = asyncio.Semaphore(at_once), random.Random(seed)  # noqa: S311
    async with client(address, 2 * at_once, OWNER) as http:

        async def one(number: int) -> None:
            async with gate:
                while not await _tried(http, number, dice, told):
                    await asyncio.sleep(0.5)
                told.over += 1

        await asyncio.gather(*(one(number) for number in range(trajectories)))


async def _tried(http: httpx.AsyncClient, number: int, dice: random.Random, told: Told) -> bool:
    """A trajectory; False when none could be opened, for the server is not there."""
    try:
        one = await _opened(http, told)
    except httpx.HTTPError:
        return False
    with suppress(httpx.HTTPError):  # it was killed, or started again without this trajectory
        await _trajectory(http, one, number, dice, told)
    return True


async def _opened(http: httpx.AsyncClient, told: Told) -> dict[str, Any]:
    one: dict[str, Any] = (await http.post("/trajectories", json={})).raise_for_status().json()
    told.opened.add(one["id"])
    return one


async def until_killed(address: str, told: Told, at_once: int) -> None:
    """Open, ask and end, for ever; returns when the server has gone."""
    dice = random.Random(0)  # noqa: S311

    async def one(http: httpx.AsyncClient, first: int) -> None:
        number = first
        while True:
            await _trajectory(http, await _opened(http, told), number, dice, told, patient=True)
            number += at_once

    async with client(address, 2 * at_once, OWNER) as http:
        done = await asyncio.gather(*(one(http, first) for first in range(at_once)), return_exceptions=True)
    for err in done:
        if not isinstance(err, httpx.HTTPError):
            raise err if isinstance(err, BaseException) else RuntimeError("a client ended")


async def _trajectory(
    http: httpx.AsyncClient,
    one: Mapping[str, Any],
    number: int,
    dice: random.Random,
    told: Told,
    *,
    patient: bool = False,
) -> None:
    key = {"authorization": f"Bearer {one['key']}"}
    history = _ask(number)
    for _ in range(2):
        body: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "messages": history}
        if dice.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        wait_s = 120.0 if patient or dice.random() < 0.75 else dice.random() * 0.1
        leaves = not patient and "stream" in body and dice.random() < 0.25
        asking = http.stream("POST", f"{one['base_url']}/chat/completions", json=body, headers=key)
        try:
            text = await asyncio.wait_for(_answered(asking, told, leaves), wait_s)
        except TimeoutError:
            continue
        if not text:
            continue
        *_, last = (json.loads(part) for part in _events(text))
        told.tokens[one["id"]] += last["usage"]["completion_tokens"]
        if "stream" not in body:
            said = last["choices"][0]["message"]["content"]
            again = {"role": "user", "content": f"{number} + 1 ="}
            history = [*history, {"role": "assistant", "content": said}, again]
    ending = f"/trajectories/{one['id']}/end"
    while (answer := await http.post(ending, json={"reward": 1.0}, headers=key)).status_code == 409:
        await asyncio.sleep(0.02)  # the server has not heard yet that a request was given up
    if answer.raise_for_status().json()["rows"]:
        told.acknowledged[one["id"]] = number


async def _answered(asking: Any, told: Told, leaves: bool) -> str:
    """A whole answer, or nothing of one whose client `leaves` after a piece of it.

    Raises: HTTPStatusError where a server that was started again knows nothing of the trajectory.
    """
    async with asking as answer:
        if answer.status_code == _UNKNOWN:
            answer.raise_for_status()
        told.failed += answer.status_code != _OK
        parts = []
        async for part in answer.aiter_text():
            if leaves:
                return ""
            parts.append(part)
    return "".join(parts) if answer.status_code == _OK else ""


def _events(text: str) -> list[str]:
    """The JSON of an answer, or those of a stream."""
    if not text.startswith("data:"):
        return [text]
    parts = (part.removeprefix("data: ") for part in text.split("\n\n") if part)
    return [part for part in parts if part != "[DONE]"]


def _ask(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{number} + 0 ="}]


def client(base_url: str, connections: int, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """A client with so many connections at most."""
    # a connection that the server is about to close, after 5 s, is not used again
    limits = httpx.Limits(max_connections=connections, keepalive_expiry=2.0)
    return httpx.AsyncClient(base_url=base_url, headers=headers, timeout=300, trust_env=False, limits=limits)
