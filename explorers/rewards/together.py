"""Runs calls of asynchronous rewards all at once, in a child process of `reward_lane.py`."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from explorers.rewards.contract import Outcome, RewardKind, arguments, group_size, outcomes, raised
from explorers.rewards.reward_calls import decode_call, encode_line, encode_outcomes
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_LONGEST = 1 << 30
"""Bytes of a line."""


async def serve_together(
    channel: socket.socket,
    rewards: Mapping[str, tuple[Callable[..., Any], RewardKind]],
    deadlines_s: Mapping[str, float],
) -> None:
    """Answer calls, in whatever order they end, until the parent hangs up.

    A line `{"cancel": number}` ends a call without an answer.
    """
    reader, writer = await asyncio.open_connection(sock=channel, limit=_LONGEST)
    running: dict[int, asyncio.Task[None]] = {}
    while line := await reader.readline():
        call = json.loads(line)
        if "cancel" in call:
            if call["cancel"] in running:
                running[call["cancel"]].cancel()
            continue
        number, name = call["number"], call["reward"]
        answering = _answered(writer, call, *rewards[name], deadlines_s[name])
        running[number] = asyncio.create_task(answering)
        running[number].add_done_callback(partial(_forget, running, number))
    for one in list(running.values()):
        one.cancel()


def _forget(running: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    del running[number]


async def _answered(
    writer: asyncio.StreamWriter,
    call: Mapping[str, object],
    reward: Callable[..., Any],
    kind: RewardKind,
    deadline_s: float,
) -> None:
    task, judged = decode_call(call)
    members, started = group_size(judged), time.perf_counter()
    found: tuple[Outcome, ...]
    try:
        async with asyncio.timeout(deadline_s) as limit:
            found = outcomes(await reward(*arguments(kind, task, judged)), members)
    except (Exception, SystemExit) as err:  # noqa: BLE001 - rewards are user code
        late = isinstance(err, TimeoutError) and limit.expired()
        why = Unscored(f"took longer than {deadline_s:g} s and was stopped", UnscoredCause.TIMEOUT)
        found = (why if late else raised(err),) * (members or 1)
    answer = {"outcomes": encode_outcomes(found), "seconds": time.perf_counter() - started}
    writer.write(encode_line({"number": call["number"], **answer}))
