"""A small OpenAI-compatible endpoint that sees whole conversations; see `tests/ops/judge_server.py`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from explorers.engines.openai_engine import OpenaiEngine
from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from tests.ops.judge_server import Answer, JudgeServer

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def completion(finish: str | None = "stop", usage: Any = USAGE, **message: Any) -> Answer:
    """A chat completion whose message has these fields."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return 200, {"object": "chat.completion", "model": "m-2026-11", "choices": [choice], "usage": usage}, {}


def calling(*calls: tuple[str, Any], content: str | None = None) -> Answer:
    """A turn that calls tools; arguments that are no text are sent as the text of their JSON."""
    sent = [
        {
            "id": f"srv-{place}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for place, (name, given) in enumerate(calls)
    ]
    return completion("tool_calls", content=content, tool_calls=sent)


class ChatServer(JudgeServer):
    """`answer(body, number)`: what to send; requests are numbered from 0."""

    def __init__(self, answer: Callable[[dict[str, Any], int], Answer], *, delay_s: float = 0.0) -> None:
        super().__init__(lambda *_: (500, {}, {}), delay_s=delay_s)
        self._chat_answer = answer

    def respond(self, body: dict, headers: dict) -> Answer:
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append(headers)
        time.sleep(self.delay_s)
        return self._chat_answer(body, number)


def version_of(folder: Path, base_url: str, model: str = "m") -> WeightRef:
    """A version that names a model at an endpoint."""
    folder.mkdir(exist_ok=True)
    (folder / "endpoint.json").write_text(json.dumps({"base_url": base_url, "name": model}))
    write_manifest(folder, {"run_id": "run", "version": 0, "step": 0})
    return WeightRef("run", 0, 0, str(folder))


def engine_at(server: JudgeServer | str, folder: Path, **options: Any) -> OpenaiEngine:
    """An engine that asks the model `m` of a server."""
    url = server if isinstance(server, str) else server.base_url
    made = OpenaiEngine(Path("m"), options={"base_url": url, **options}, seed=0, max_model_len=256)
    made.load_weights(version_of(folder / "v0", url))
    return made
