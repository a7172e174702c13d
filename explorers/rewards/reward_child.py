"""The child process of `reward_process.py`: builds rewards by name and answers calls, one at a time.

What rewards print goes to stderr. They run in the main thread, so time-outs by signal work.
"""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Mapping
from typing import Any

from explorers.rewards.rules import judged, make_reward
from rft_data.core.children import connected, limit_memory
from rft_data.core.errors import RftError
from rft_data.core.masking import hide
from rft_data.core.protocols import Reward, Unscored
from rft_data.core.rows import Task


def main() -> None:
    """Build the rewards of the first line, then answer each further one, until the parent hangs up."""
    channel = connected()
    lines = channel.makefile("rb")
    request = json.loads(lines.readline())
    hide(request["hidden"])
    try:
        rewards = {one["use"]: make_reward(one["use"], one["args"]) for one in request["components"]}
    except (Exception, SystemExit) as err:  # noqa: BLE001 - importing a reward runs user code
        traceback.print_exc()
        kind = type(err).__name__ if isinstance(err, RftError) else "RecipeError"
        _send(channel, {"number": request["number"], "error": kind, "message": str(err) or repr(err)})
        return
    limit_memory(request["memory_bytes"])
    _send(channel, {"number": request["number"]})
    own_pid = os.getpid()
    for line in lines:
        call = json.loads(line)
        answer = _answer(rewards, call, request["memory_bytes"])
        if os.getpid() != own_pid:
            os._exit(0)  # the reward forked, and this copy returned too
        _send(channel, {"number": call["number"], **answer})
        if answer.get("spent"):
            return


def _answer(rewards: Mapping[str, Reward], call: dict[str, Any], memory_bytes: int) -> dict[str, Any]:
    task = Task(**{**call["task"], "messages": tuple(call["task"]["messages"])})
    started = time.perf_counter()
    try:
        value = judged(rewards[call["reward"]], task, call["completion"])
    except MemoryError:
        reason = f"needed more than the {memory_bytes >> 20} MiB of memory that its process may use"
        return {"unscored": reason, "seconds": time.perf_counter() - started, "spent": True}
    outcome = {"unscored": value.reason} if isinstance(value, Unscored) else {"value": value}
    return {**outcome, "seconds": time.perf_counter() - started}


def _send(channel: socket.socket, answer: Mapping[str, Any]) -> None:
    channel.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
