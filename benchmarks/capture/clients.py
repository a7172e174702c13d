"""Clients of a server: many at once, some of which go away, and what they were told."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.capture.servers import TOKEN

OWNER = {"authorization": f"Bearer {TOKEN}"}


@dataclass(slots=True)
class Told:
    """What clients know at the end."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    """Trajectories whose end was answered, and the number that each speaks of."""
    failed: int = 0
    """Requests that failed though their client waited."""


async def tokens_per_s(base_url: str, key: str, requests: int, at_once: int, tokens: int) -> float:
    """Tokens a second of chat requests of which `at_once` run together."""
    gate, sampled = asyncio.Semaphore(at_once), 0

    async def one(http: httpx.AsyncClient, number: int) -> int:
        body = {"model": "tiny", "max_tokens": tokens, "messages": _ask(number)}
        async with gate:
            answer = await http.post("/chat/completions", json=body)
        answer.raise_for_status()
        return int(answer.json()["usage"]["completion_tokens"])

    headers = {"authorization": f"Bearer {key}"}
    async with _client(base_url, at_once, headers) as http:
        began = time.perf_counter()
        sampled = sum(await asyncio.gather(*(one(http, number) for number in range(requests))))
        return sampled / (time.perf_counter() - began)


async def opened(address: str) -> dict[str, Any]:
    """A new trajectory."""
    async with _client(address, 1, OWNER) as http:
        answer: dict[str, Any] = (await http.post("/trajectories", json={})).raise_for_status().json()
        return answer


async def come_and_go(address: str, trajectories: int, seed: int, at_once: int) -> Told:
    """So many trajectories of two turns each; a quarter of the requests is given up at a random time."""
    told, gate, dice = Told(), asyncio.Semaphore(at_once), random.Random(seed)  # noqa: S311
    async with _client(address, 2 * at_once, OWNER) as http:

        async def one(number: int) -> None:
            async with gate:
                await _trajectory(http, number, dice, told)

        await asyncio.gather(*(one(number) for number in range(trajectories)))
    return told


async def until_killed(address: str, told: Told, at_once: int) -> None:
    """Open, ask and end, for ever; returns when the server has gone."""
    dice = random.Random(0)  # noqa: S311

    async def one(http: httpx.AsyncClient, first: int) -> None:
        number = first
        while True:
            await _trajectory(http, number, dice, told, patient=True)
            number += at_once

    async with _client(address, 2 * at_once, OWNER) as http:
        done = await asyncio.gather(*(one(http, first) for first in range(at_once)), return_exceptions=True)
    for err in done:
        if not isinstance(err, httpx.HTTPError):
            raise err if isinstance(err, BaseException) else RuntimeError("a client ended")


async def _trajectory(
    http: httpx.AsyncClient, number: int, dice: random.Random, told: Told, *, patient: bool = False
) -> None:
    one = (await http.post("/trajectories", json={})).raise_for_status().json()
    key = {"authorization": f"Bearer {one['key']}"}
    history = _ask(number)
    for _ in range(2):
        body = {"model": "tiny", "max_tokens": 8, "messages": history, "stream": dice.random() < 0.5}
        wait_s = 120.0 if patient or dice.random() < 0.75 else dice.random() * 0.1
        try:
            answer = await asyncio.wait_for(
                http.post(f"{one['base_url']}/chat/completions", json=body, headers=key), wait_s
            )
        except TimeoutError:
            continue
        told.failed += answer.status_code != 200
        if not body["stream"]:
            said = answer.json()["choices"][0]["message"]["content"]
            history = [*history, {"role": "assistant", "content": said}, {"role": "user", "content": "+ 1 ="}]
    ending = f"/trajectories/{one['id']}/end"
    while (answer := await http.post(ending, json={"reward": 1.0}, headers=key)).status_code == 409:
        await asyncio.sleep(0.02)  # the server has not heard yet that a request was given up
    if answer.raise_for_status().json()["rows"]:
        told.acknowledged[one["id"]] = number


def _ask(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{number} + 0 ="}]


def _client(base_url: str, connections: int, headers: dict[str, str]) -> httpx.AsyncClient:
    # a connection that the server is about to close, after 5 s, is not used again
    limits = httpx.Limits(max_connections=connections, keepalive_expiry=2.0)
    return httpx.AsyncClient(base_url=base_url, headers=headers, timeout=300, trust_env=False, limits=limits)
