"""An environment: whoever answers wrong is told so, and may try again."""

from __future__ import annotations

from typing import Any

from explorers.conversations.recording import RecordingModel
from rft_data import Task


async def second_try(task: Task, model: RecordingModel, tries: int = 2) -> None:
    """One rollout. It returns no reward: the recipe's rewards score the last answer."""
    messages: list[Any] = list(task.messages)
    for _ in range(tries):
        reply = await model.chat(messages)
        if str(task.answer) in reply.content:
            return
        messages += [reply.message, {"role": "user", "content": "No. Try again."}]
