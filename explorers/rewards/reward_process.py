"""One child process that computes rewards: lines of JSON; calls are sent ahead and answered in order.

`reward_pool.py` has the queue and restarts children.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from rft_data.core import errors
from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import RftError, StalledError
from rft_data.core.rows import Task

START_DEADLINE_S = 120.0
"""For importing and building the rewards."""
_END_S = 5.0
_TASK_FIELDS = tuple(field.name for field in fields(Task))


class ChildLost(Exception):
    """The child hung or ended in the first call without an answer; the message is that call's reason."""

    def __init__(self, reason: str, seconds: float, *, late: bool = False) -> None:
        """`seconds`: how long that call took; `late`: the child had not ended by itself."""
        super().__init__(reason)
        self.seconds = seconds
        self.late = late


class RewardProcess(Child):
    """A running child with rewards in it; if it is killed, whoever waits for an answer hears of it."""

    def __init__(self, components: Sequence[Mapping[str, Any]], memory_bytes: int) -> None:
        """Start it and wait until it has built its rewards.

        Args:
            components: `{"use": name or import path, "args": {...}}` each.
            memory_bytes: address space it may take beyond what its rewards have mapped once built.

        Raises: what building a reward raised; StalledError past START_DEADLINE_S; RftError if it died.
        """
        super().__init__("explorers.rewards.reward_child")
        request = {"components": [dict(one) for one in components], "memory_bytes": memory_bytes}
        try:
            answer = next(self.ask([_line(request)], START_DEADLINE_S))
        except ChildLost as lost:
            self.close()
            names = ", ".join(f"'{one['use']}'" for one in components)
            kind = StalledError if lost.late else RftError
            raise kind(
                f"the process for the rewards {names} did not start: it {lost}; its messages are above."
            ) from lost
        if "error" in answer:
            self.close()
            raise getattr(errors, answer["error"], RftError)(answer["message"])

    def ask(self, lines: Sequence[bytes], deadline_s: float) -> Iterator[dict[str, Any]]:
        """Send calls and yield their answers, in order.

        Raises: ChildLost when it ends, or one answer takes longer than `deadline_s` after the one before.
        """
        self.send(b"".join(lines))
        for _ in lines:
            started = time.monotonic()
            try:
                answer = self.line(deadline_s)
            except TimeoutError as err:
                reason = f"took longer than {deadline_s:g} s and was stopped"
                raise ChildLost(reason, deadline_s, late=True) from err
            except EOFError as err:
                raise ChildLost(self._ending(), time.monotonic() - started) from err
            yield json.loads(answer)

    def _ending(self) -> str:
        """How it ended, after it hung up."""
        code = self.wait(_END_S)
        if code is None:
            return "closed its connection"
        verb = "ended" if code >= 0 else "crashed"
        return f"{verb} its process ({how_it_ended(code).removeprefix('signal ')})"


def encode_call(reward: str, task: Task, completion: str) -> bytes:
    """One call as a line."""
    values = {name: getattr(task, name) for name in _TASK_FIELDS}
    return _line({"reward": reward, "task": values, "completion": completion})


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, default=dict).encode() + b"\n"
