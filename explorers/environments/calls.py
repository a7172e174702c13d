"""Plays the tool calls of one turn. What goes wrong is answered to the model and counted; only the failure
of the whole instance is raised."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Sequence
from typing import Generic

from explorers.conversations.replies import ToolCall
from explorers.environments.pool import Lent
from explorers.environments.thread import LateCall, StillBusy
from explorers.environments.tools import Instance, InstanceFailed, RefusedCall, Toolset
from rft_data.core.masking import masked
from rft_data.core.rows import Message
from rft_data.core.words import ToolFailure

_LONGEST = 100_000
"""Characters of an answer that the model is shown."""


class ToolCalls(Generic[Instance]):
    """The calls of one rollout on its instance of the tools, with counts of what went wrong."""

    def __init__(self, tools: Toolset[Instance], lent: Lent[Instance], deadline_s: float) -> None:
        """`deadline_s`: for one call."""
        self._tools = tools
        self._lent = lent
        self._deadline_s = deadline_s
        self.made = 0
        """Calls so far, those that failed included."""
        self.failures: Counter[ToolFailure] = Counter()

    @property
    def are_over(self) -> bool:
        """Whether the instance takes no further call."""
        return self._tools.is_over(self._lent.environment)

    async def answer(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Play the calls of one turn; returns a tool message for each, in their order.

        Coroutine methods run beside each other; others run one after another, in the order of the calls.
        """
        self.made += len(calls)
        turn = asyncio.Lock()
        return list(await asyncio.gather(*(self._message(call, turn) for call in calls)))

    async def _message(self, call: ToolCall, turn: asyncio.Lock) -> Message:
        message = {"role": "tool", "tool_call_id": call.id, "name": call.name}
        try:
            content = _text(await self._play(call, turn))
        except RefusedCall as err:
            self.failures[err.failure] += 1
            content = json.dumps({"error": str(err)})
        return {**message, "content": _storable(content[:_LONGEST])}

    async def _play(self, call: ToolCall, turn: asyncio.Lock) -> object:
        """The value of one call. Raises: RefusedCall."""
        if call.arguments is None:
            raise RefusedCall(ToolFailure.MALFORMED, "the call is not valid JSON with a name and arguments")
        if call.name not in self._tools.names:
            known = ", ".join(sorted(self._tools.names))
            raise RefusedCall(ToolFailure.UNKNOWN, f"there is no tool '{call.name}'; there are: {known}")
        if problem := self._tools.problem(call.name, call.arguments):
            raise RefusedCall(ToolFailure.MALFORMED, problem)
        method = self._tools.method(self._lent.environment, call.name)
        try:
            if inspect.iscoroutinefunction(method):
                return await self._lent.call(self._deadline_s, method, **call.arguments)
            async with turn:
                return await self._lent.call(self._deadline_s, method, **call.arguments)
        except (RefusedCall, InstanceFailed):
            raise
        except (LateCall, StillBusy) as err:
            raise RefusedCall(ToolFailure.LATE, str(err)) from err
        except Exception as err:
            raise RefusedCall(ToolFailure.RAISED, masked(f"{type(err).__name__}: {err}")) from err


def _storable(text: str) -> str:
    """The text with `?` for what is no character: half of a pair, as names of files may have."""
    return text.encode(errors="replace").decode()


def _text(value: object) -> str:
    """The result of a tool, as the model sees it; containers as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
    return str(value)
