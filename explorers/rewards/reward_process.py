"""One child process that computes rewards. Calls are sent ahead and answered in order, one at a time.

Each call has a number, and its answer must have the same one: a reward may fork, or write to a socket that is
not its own. `reward_pool.py` has the queue and restarts children.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorers.rewards.contract import RewardKind
from explorers.rewards.reward_calls import Scored, decode_answer, decode_kind, encode_line
from rft_data.core import errors
from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import RftError, StalledError
from rft_data.core.masking import hidden_values
from rft_data.core.text import shown

START_DEADLINE_S = 120.0
"""Seconds for importing and building the rewards."""
_START = 0
"""Number of the first message, which builds the rewards."""
_END_S = 5.0


class ChildLost(Exception):
    """The child cannot be used further; the message is the reason of the first call without an answer."""

    def __init__(self, reason: str, seconds: float, *, late: bool = False) -> None:
        """`seconds`: how long that call took; `late`: its deadline passed."""
        super().__init__(reason)
        self.seconds = seconds
        self.late = late


class RewardProcess(Child):
    """A running child with rewards in it; if it is killed, whoever waits for an answer hears of it."""

    kinds: Mapping[str, RewardKind]
    """How each of its rewards is called, by name."""

    def __init__(
        self,
        components: Sequence[Mapping[str, object]],
        memory_bytes: int,
        *,
        together_s: Mapping[str, float] | None = None,
    ) -> None:
        """Start it and wait until it has built its rewards.

        Args:
            components: `{"use": name or import path, "args": {...}, "name": `use` if left out}` each.
            memory_bytes: address space it may take beyond what its rewards have mapped once built.
            together_s: to run all calls at once, each with so many seconds, by name; None: one at a time.

        Raises: what building a reward raised; StalledError past START_DEADLINE_S; RftError if it died.
        """
        super().__init__("explorers.rewards.reward_child")
        request = {
            "components": [dict(one) for one in components],
            "memory_bytes": memory_bytes,
            "hidden": hidden_values(),
            "together_s": together_s,
        }
        self.send(encode_line({"number": _START, **request}))
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
        self.kinds = {name: decode_kind(kind) for name, kind in answer["kinds"].items()}

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
            scored = decode_answer(answer)
            if scored is None:
                raise ChildLost(foreign(json.dumps(answer)), time.monotonic() - started)
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
            raise ChildLost(self.ending(), time.monotonic() - started) from err
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("number") != number:
            raise ChildLost(foreign(line.decode("utf-8", "replace")), time.monotonic() - started)
        return answer

    def ending(self) -> str:
        """How it ended, after it hung up."""
        code = self.wait(_END_S)
        if code is None:
            return "closed its connection"
        verb = "ended" if code >= 0 else "crashed"
        return f"{verb} its process ({how_it_ended(code).removeprefix('signal ')})"


def foreign(text: str) -> str:
    return f"answered with something that is no answer to this call: {shown(text)}"
