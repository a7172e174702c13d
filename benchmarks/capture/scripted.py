"""Agents of ten turns without an engine: what capturing itself costs, and how many rows it makes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import MutableMapping
from typing import Any

from explorers.capture.capture import Capture
from explorers.capture.gate import Gate
from explorers.capture.trajectory import ASKED
from explorers.conversations.template import ChatTemplate
from rft_data.core.engine import Sampling
from rft_data.core.rows import Task
from rft_data.core.words import RowSource, TemplatePolicy
from rft_data.core.workflow import RolloutContext
from trainers.models.tiny_model import build_tiny_tokenizer

TURNS, TOKENS = 10, 48
_THINKING = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + m['content'].split('</think>')[-1].lstrip('\n') + '<|eos|>' }}"
    "{% else %}{{ '<|user|>' + m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Drops the thinking of earlier turns."""


class _Rendering:
    """In vLLM's place: renders and tokenises every history anew, and says what is next."""

    def __init__(self, template: ChatTemplate, thinks: bool) -> None:
        self._template = template
        self._thinks = thinks
        self.spent = 0.0
        """Seconds that are not capture's."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Record one turn."""
        asked = ASKED.get()
        assert asked is not None  # noqa: S101 - the gate sets it
        began = time.perf_counter()
        prompt = self._template.prompt(asked.messages or (), None)
        number = len(asked.messages or ())
        text = ("<think>\n1 + 1 = 2\n</think>\n\n" if self._thinks else "") + f"the answer is {number} " * 4
        sampled = [*self._template.ids(text), *self._template.ids("<|eos|>")]
        self.spent += time.perf_counter() - began
        [turn] = asked.trajectory.begin(prompt, asked, 1, TOKENS)
        turn.sampled, turn.logprobs = sampled, [-1.0] * len(sampled)
        asked.trajectory.finish(turn, "stop", [(0, 0, len(sampled))], asked)
        asked.trajectory.settle(TOKENS)


def agents(number: int, *, thinks: bool) -> dict[str, float]:
    """Rows per rollout and milliseconds per request of agents of TURNS turns."""
    tokenizer = build_tiny_tokenizer(["the answer is "])
    if thinks:
        tokenizer.chat_template = _THINKING
    template = ChatTemplate(tokenizer)
    policy = TemplatePolicy.KEEP_THINKING if thinks else TemplatePolicy.FORK
    return asyncio.run(_played(number, template, policy, thinks))


async def _played(
    number: int, template: ChatTemplate, policy: TemplatePolicy, thinks: bool
) -> dict[str, float]:
    capture = Capture(template, Sampling(TOKENS), policy=policy)
    model = _Rendering(template, thinks)
    gate, rows, lost, seconds = Gate(capture, model), 0, 0, 0.0
    for _ in range(number):
        trajectory = capture.open()
        messages: list[dict[str, str]] = [{"role": "user", "content": "1 + 1 ="}]
        for turn in range(TURNS):
            body = json.dumps({"model": "m", "messages": messages, "max_tokens": TOKENS}).encode()
            began = time.perf_counter()
            await gate(_scope(capture, trajectory.id), _given(body), _nowhere)
            seconds += time.perf_counter() - began
            said = list(trajectory.turns)[-1].conversation[-1]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{turn} + 1 ="}]
        capture.close(trajectory.id)
        ctx = RolloutContext("run", "g", 0, 0, "e", RowSource.ROLLOUT, Sampling(TOKENS))
        made = trajectory.rows(Task("t", trajectory.prompt), ctx)
        rows += len(made)
        lost += trajectory.sampled - sum(sum(row.action_mask or ()) for row in made)
    spent = seconds - model.spent
    return {"rows_per_rollout": rows / number, "ids_lost": lost, "ms": 1000 * spent / number / TURNS}


def _scope(capture: Capture, name: str) -> dict[str, Any]:
    key = f"Bearer {capture.key(name)}".encode()
    path = f"{capture.path(name)}/chat/completions"
    return {"type": "http", "method": "POST", "path": path, "headers": [(b"authorization", key)]}


def _given(body: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _nowhere(message: MutableMapping[str, Any]) -> None:
    if message["type"] == "http.response.body" and message.get("body"):
        raise RuntimeError(f"refused: {message['body']!r}")
