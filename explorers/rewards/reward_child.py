"""The child process of `reward_process.py`: builds rewards by name and answers calls, one at a time.

What rewards print goes to stderr. They run in the main thread, so time-outs by signal work. A child of
`reward_lane.py` is asked to run its calls together instead; its rewards are coroutine functions.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from explorers.rewards.contract import RewardKind, judge, reward_kind
from explorers.rewards.registry import make_reward
from explorers.rewards.reward_calls import decode_call, encode_kind, encode_line, encode_outcomes
from explorers.rewards.together import serve_together
from rft_data.core.children import connected, limit_memory
from rft_data.core.errors import RftError
from rft_data.core.masking import hide
from rft_data.core.workflow import Unscored

Built: TypeAlias = Mapping[str, tuple[Callable[..., Any], RewardKind]]
"""Rewards and how they are called, by name."""


def main() -> None:
    """Build the rewards of the first line, then answer each further one, until the parent hangs up."""
    channel = connected()
    lines = channel.makefile("rb")
    request = json.loads(lines.readline())
    hide(request["hidden"])
    try:
        rewards = _built(request["components"])
    except (Exception, SystemExit) as err:  # noqa: BLE001 - importing a reward runs user code
        if not isinstance(err, RftError):  # whose message says what is wrong
            traceback.print_exc()
        kind = type(err).__name__ if isinstance(err, RftError) else "RecipeError"
        _send(channel, {"number": request["number"], "error": kind, "message": str(err) or repr(err)})
        return
    limit_memory(request["memory_bytes"])
    kinds = {name: encode_kind(kind) for name, (_, kind) in rewards.items()}
    _send(channel, {"number": request["number"], "kinds": kinds})
    if request["together_s"] is not None:
        asyncio.run(serve_together(channel, rewards, request["together_s"]))
        return
    own_pid = os.getpid()
    for line in lines:
        call = json.loads(line)
        answer = _answer(rewards, call, request["memory_bytes"])
        if os.getpid() != own_pid:
            os._exit(0)  # the reward forked, and this copy returned too
        _send(channel, {"number": call["number"], **answer})
        if answer.get("spent"):
            return


def _built(components: list[dict[str, Any]]) -> Built:
    found = {}
    for one in components:
        reward = make_reward(one["use"], one["args"])
        found[one.get("name", one["use"])] = reward, reward_kind(reward, one["use"])
    return found


def _answer(rewards: Built, call: dict[str, Any], memory_bytes: int) -> dict[str, object]:
    task, judged = decode_call(call)
    started = time.perf_counter()
    spent: dict[str, object] = {}
    try:
        found = judge(*rewards[call["reward"]], task, judged)
    except MemoryError:
        reason = f"needed more than the {memory_bytes >> 20} MiB of memory that its process may use"
        found, spent = (Unscored(reason),), {"spent": True}
    return {"outcomes": encode_outcomes(found), "seconds": time.perf_counter() - started, **spent}


def _send(channel: socket.socket, answer: Mapping[str, object]) -> None:
    channel.sendall(encode_line(answer))


if __name__ == "__main__":
    main()
