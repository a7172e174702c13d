"""One child process that computes rewards: lines of JSON; calls are sent ahead and answered in order.

Each call has a number, and its answer must have the same one: a reward may fork, or write to a socket that is
not its own. `reward_pool.py` has the queue and restarts children.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rft_data.core import errors
from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import RftError, StalledError
from rft_data.core.masking import hidden_values
from rft_data.core.protocols import Unscored
from rft_data.core.rows import Task
from rft_data.core.text import shown

START_DEADLINE_S = 120.0
"""For importing and building the rewards."""
_START = 0
"""Number of the first message, which builds the rewards."""
_END_S = 5.0
_TASK_FIELDS = tuple(field.name for field in fields(Task))


@dataclass(frozen=True, slots=True)
class Scored:
    """The value of one reward for one completion, and the seconds it took."""

    value: float | Unscored
    seconds: float
    spent: bool = False
    """Whether its process has used up its memory and ends."""


class ChildLost(Exception):
    """The child cannot be used further; the message is the reason of the first call without an answer."""

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
        request = {
            "components": [dict(one) for one in components],
            "memory_bytes": memory_bytes,
            "hidden": hidden_values(),
        }
        self.send(_line({"number": _START, **request}))
        try:
            answer = self._answer(_START, START_DEADLINE_S)
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

    def ask(self, calls: Sequence[tuple[int, bytes]], deadline_s: float) -> Iterator[Scored]:
        """Send calls and yield what they gave, in order.

        Args: calls: the number and the line of each, from `encode_call`.
        Raises: ChildLost when it ends, answers with something that is no answer to the call, or takes longer
            than `deadline_s` for one answer after the one before.
        """
        self.send(b"".join(line for _, line in calls))
        for number, _ in calls:
            started = time.monotonic()
            answer = self._answer(number, deadline_s)
            scored = _scored(answer)
            if scored is None:
                raise ChildLost(_foreign(json.dumps(answer)), time.monotonic() - started)
            yield scored

    def _answer(self, number: int, deadline_s: float) -> dict[str, Any]:
        """Its next line, which must be the answer to the message `number`."""
        started = time.monotonic()
        try:
            line = self.line(deadline_s)
        except TimeoutError as err:
            reason = f"took longer than {deadline_s:g} s and was stopped"
            raise ChildLost(reason, deadline_s, late=True) from err
        except EOFError as err:
            raise ChildLost(self._ending(), time.monotonic() - started) from err
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("number") != number:
            raise ChildLost(_foreign(line.decode("utf-8", "replace")), time.monotonic() - started)
        return answer

    def _ending(self) -> str:
        """How it ended, after it hung up."""
        code = self.wait(_END_S)
        if code is None:
            return "closed its connection"
        verb = "ended" if code >= 0 else "crashed"
        return f"{verb} its process ({how_it_ended(code).removeprefix('signal ')})"


def encode_call(number: int, reward: str, task: Task, completion: str) -> bytes:
    """One call as a line; numbers begin at 1."""
    values = {name: getattr(task, name) for name in _TASK_FIELDS}
    return _line({"number": number, "reward": reward, "task": values, "completion": completion})


def _scored(answer: Mapping[str, Any]) -> Scored | None:
    """What an answer says; None when it has not the form of one."""
    value, reason, seconds = (answer.get(name) for name in ("value", "unscored", "seconds"))
    if not isinstance(seconds, float) or not math.isfinite(seconds):
        return None
    if isinstance(reason, str):
        return Scored(Unscored(reason), seconds, spent="spent" in answer)
    return Scored(value, seconds) if isinstance(value, float) and math.isfinite(value) else None


def _foreign(text: str) -> str:
    return f"answered with something that is no answer to this call: {shown(text)}"


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, default=dict).encode() + b"\n"
