"""A number is to be guessed: the game, and two ways to play it that the model is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from explorers.conversations.recording import RecordingModel
from rft_data import RowError, Task

GUESSES = 4
_RANGE = re.compile(r"from (\d+) to (\d+)", re.IGNORECASE)


async def play(task: Task, model: RecordingModel, guesses: int = GUESSES) -> float:
    """One game: 1.0 when a guess is the task's answer, else 0.0. After each other guess: more or less."""
    messages: list[Any] = list(task.messages)
    secret = int(task.answer or "")
    for _ in range(guesses):
        reply = await model.chat(messages)
        if reply.content.strip() == str(secret):
            return 1.0
        messages += [reply.message, {"role": "user", "content": hint(reply.content.strip(), secret)}]
    return 0.0


def hint(guess: str, secret: int) -> str:
    """Reply to a wrong guess."""
    if not guess.isdecimal():
        return "a number!"
    return "more" if int(guess) < secret else "less"


def halving(task: Task) -> list[dict[str, object]]:
    """A game in which each guess is the middle of what is left."""
    return _game(task, lambda low, high: (low + high) // 2)


def counting(task: Task) -> list[dict[str, object]]:
    """A game in which the guesses are the first number, the next, and so on."""
    return _game(task, lambda low, high: low)


def _game(task: Task, guess: Callable[[int, int], int]) -> list[dict[str, object]]:
    """The messages of a game after the prompt; `guess` is given the least and greatest number left."""
    low, high = _bounds(task)
    secret = int(task.answer or "")
    messages: list[dict[str, object]] = []
    for number in range(GUESSES):
        said = guess(low, high)
        messages.append({"role": "assistant", "content": str(said)})
        if said == secret or number == GUESSES - 1:
            break
        messages.append({"role": "user", "content": hint(str(said), secret)})
        low, high = (max(low, said + 1), high) if said < secret else (low, min(high, said - 1))
    return messages


def _bounds(task: Task) -> tuple[int, int]:
    question = str(task.messages[-1]["content"])
    found = _RANGE.search(question)
    if found is None:
        raise RowError(f"task '{task.task_id}': there is no 'from 1 to 9' in {question!r}.")
    return int(found[1]), int(found[2])
