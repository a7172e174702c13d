"""Letters without a plan, which the model is shown before it walks, and its walks as the page shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rft_data import Task

_BOARD = re.compile(r"(?m)^(?:[SFHG]|\[[SFHG]\])+$")


def any_letter(task: Task) -> str:
    """One of the four moves, by the task's id."""
    return "ldru"[int(task.task_id[:8], 16) % 4]


def board(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Its place at each turn, and its words there."""
    messages = row["messages"]
    return [
        {"where": "\n".join(lines), "said": str(reply.get("content", ""))}
        for shown, reply in pairwise(messages)
        if reply.get("role") == "assistant" and (lines := _BOARD.findall(str(shown.get("content", ""))))
    ]
