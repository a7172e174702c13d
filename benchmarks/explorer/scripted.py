"""An engine that answers by script, and worlds that wait: what remains is the explorer's own work."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from rft_data.core.engine import Completion, Sampling
from rft_data.core.rows import Task, WeightRef

SAID = "17"
"""Every reply."""
_NEVER = float("inf")


class ScriptedEngine:
    """Says SAID after `turn_s`, for `slots` requests at a time; remembers prompts and when it was idle."""

    newest: ScriptedEngine
    """The one that was made last: a role does not hand out its engine."""

    def __init__(self, model: Path, *, turn_s: float = 0.0, slots: int = 1 << 20) -> None:
        """`model`: a folder with a tokenizer."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        self._reply = [*tokenizer(SAID, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        self._turn_s = turn_s
        self._slots = asyncio.Semaphore(slots)
        self._inside = 0
        self._idle_since = _NEVER
        self._idle_s = 0.0
        self.prompts: list[list[int]] = []
        self.version = 0
        ScriptedEngine.newest = self

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """The scripted reply."""
        self.prompts.append(list(prompt_ids))
        self._idle_s += max(0.0, time.monotonic() - self._idle_since)
        self._idle_since = _NEVER
        self._inside += 1
        async with self._slots:
            await asyncio.sleep(self._turn_s)
        self._inside -= 1
        if not self._inside:
            self._idle_since = time.monotonic()
        n = len(self._reply)
        return Completion(self._reply, [-0.5] * n, "stop", [(0, 0, n)])

    @property
    def idle_s(self) -> float:
        """Seconds between the first request and the last in which it had nothing to do."""
        return self._idle_s

    def retokenised(self) -> int:
        """Tokens of earlier turns that a later prompt of the conversation does not have as they were.

        Prompts are told apart by their first tokens, so every task must have a first message of its own, and
        rollouts of one task must say the same.
        """
        lost, newest = 0, dict[tuple[int, ...], list[int]]()
        for prompt in sorted(self.prompts, key=len):
            start = next((key for key in newest if tuple(prompt[: len(key)]) == key), tuple(prompt))
            before = newest.get(start, [])
            if len(prompt) > len(before):
                kept = before + self._reply if before else []
                lost += len(kept) if prompt[: len(kept)] != kept else 0
                newest[start] = prompt
        return lost

    async def swap_weights(self, ref: WeightRef) -> float:
        """Serve another version."""
        self.version = ref.version
        return 0.0

    def load_weights(self, ref: WeightRef) -> float:
        """The same."""
        self.version = ref.version
        return 0.0

    def close(self) -> None:
        """Nothing to free."""


async def play_turns(task: Task, model: Any, turns: int = 8) -> float:
    """A conversation of so many turns."""
    messages = list(task.messages)
    for _ in range(turns):
        reply = await model.chat(messages)
        messages = [*messages, reply.message, {"role": "user", "content": f"{reply.content} + 1 = ?"}]
    return 1.0


async def play_with_deaths(task: Task, model: Any, share: float) -> float:
    """One turn and the reward 1, in a world of which this share dies."""
    await model.chat(list(task.messages))
    if random.random() < share:  # noqa: S311 - no secret
        raise ConnectionError("the world is away")
    return 1.0


class SlowWorld(gymnasium.Env):
    """A world each of whose steps takes between 0.05 s and `longest_s`, evenly spread."""

    render_mode = None

    def __init__(self, longest_s: float = 2.0, steps: int = 4) -> None:
        """`steps`: until it ends."""
        self.action_space = gymnasium.spaces.Discrete(100)
        self.observation_space = gymnasium.spaces.Text(10)
        self._longest_s = longest_s
        self._steps = steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Begin."""
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._left = self._steps
        return "begun", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        time.sleep(self._random.uniform(min(0.05, self._longest_s), self._longest_s))
        self._left -= 1
        return "on", float(self._left == 0), self._left == 0, False, {}
