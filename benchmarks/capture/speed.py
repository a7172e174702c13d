"""`rft serve` beside vLLM's own server: both run, and are asked in turn by bursts of the same requests.

A pair is a burst to each; the order within pairs alternates (ABBA), so that what else the machine does meets
both. Their ratio is the median over the pairs, with a bootstrap interval.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from benchmarks.capture.clients import asked_tokens, client, opened
from benchmarks.capture.servers import Server, rft_serve, vllm_serve
from benchmarks.turns import interval

AT_ONCE, TOKENS = 32, 48
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Side:
    """One of the two servers, its clients, and what they measured."""

    server: Server
    http: httpx.AsyncClient
    places: list[tuple[str, str]]
    """Base URL and key of each client."""
    rates: list[float] = field(default_factory=list)
    """Tokens a second of each burst."""
    busy: list[float] = field(default_factory=list)
    """Processor milliseconds a token of each burst."""
    idle: list[float] = field(default_factory=list)
    """Processors in use while the other server answered."""

    async def burst(self, number: int, other: Side) -> None:
        """All clients ask at once; measures both servers meanwhile."""
        before = [processor_s(one.server) for one in (self, other)]
        began = time.perf_counter()
        asked = (
            asked_tokens(self.http, place, number * len(self.places) + n, TOKENS)
            for n, place in enumerate(self.places)
        )
        tokens = sum(await asyncio.gather(*asked))
        seconds = time.perf_counter() - began
        mine, theirs = (processor_s(one.server) - was for one, was in zip((self, other), before, strict=True))
        self.rates.append(tokens / seconds)
        self.busy.append(1000 * mine / tokens)
        other.idle.append(theirs / seconds)


def speed(model: Path, folder: Path, threads: int, pairs: int) -> dict[str, float]:
    """Tokens a second of both servers, their ratio with its interval, and processor time."""
    with (
        rft_serve(model, folder / "ours", threads) as mine,
        vllm_serve(model, folder / "theirs", threads) as it,
    ):
        ours, theirs = asyncio.run(_paired(mine, it, pairs))
    ratios = [one / other for one, other in zip(ours.rates, theirs.rates, strict=True)]
    low, high = interval(ratios)
    return {
        "served_tokens_per_s": float(np.median(ours.rates)),
        "vllm_tokens_per_s": float(np.median(theirs.rates)),
        "served_tokens_per_s_vs_vllm_serve": float(np.median(ratios)),
        "served_ratio_low": low,
        "served_ratio_high": high,
        "pairs": len(ratios),
        "served_cpu_ms_per_token": float(np.median(ours.busy)),
        "vllm_cpu_ms_per_token": float(np.median(theirs.busy)),
        "served_idle_cores": float(np.median(ours.idle)),
        "vllm_idle_cores": float(np.median(theirs.idle)),
    }


async def _paired(mine: Server, it: Server, pairs: int) -> tuple[Side, Side]:
    async with client(mine.address, AT_ONCE) as http, client(it.address, AT_ONCE) as other:
        trajectories = [await opened(mine.address) for _ in range(AT_ONCE)]
        keys = [(one["base_url"], one["key"]) for one in trajectories]
        ours, theirs = Side(mine, http, keys), Side(it, other, [(f"{it.address}/v1", "none")] * AT_ONCE)
        for number in range(pairs + 1):
            order = (ours, theirs) if number % 2 else (theirs, ours)
            for one, beside in (order, order[::-1]):
                await one.burst(number, beside)
    for side in (ours, theirs):  # the first pair warms up
        for measured in (side.rates, side.busy, side.idle):
            del measured[0]
    return ours, theirs


def processor_s(server: Server) -> float:
    """Processor seconds of a server and its children so far."""
    spent = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            told = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        if int(told[2]) == server.process.pid:  # of its process group
            spent += int(told[11]) + int(told[12])
    return spent / _TICKS
