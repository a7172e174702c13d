"""A rollout's model that looks like `openai.AsyncOpenAI`, for programs that ask one.

All that they sample is recorded with its exact tokens. There are chat calls and completion calls, without
streams. Arguments that would sample from another distribution than the rows say are refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

from explorers.conversations.asked import AskedLimits, check_messages, check_prompt, checked_limits
from explorers.conversations.recording import RecordingModel
from explorers.conversations.replies import Reply
from rft_data.core.engine import Sampling
from rft_data.core.errors import BudgetSpent, ContextOverflow, RowError
from rft_data.core.words import FinishReason, RolloutEnd

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

_OVERLONG = "This model's maximum context length is exceeded"
"""How an endpoint says it, by which programs know it."""


class RolloutClient:
    """`client.chat.completions.create` and `client.completions.create`, played by a model."""

    def __init__(self, model: RecordingModel, sampling: Sampling) -> None:
        """`sampling`: of the rollout; a call may ask for no other."""
        self.model = model
        self._sampling = sampling
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._chat))
        self.completions = SimpleNamespace(create=self._complete)
        self.end: RolloutEnd | None = None
        """The limit that ended the rollout."""
        self.error: Exception | None = None
        """Error of a call that failed, which a program may have swallowed."""

    async def _chat(
        self,
        *,
        messages: Sequence[Mapping[str, object]] = (),
        model: str = "",
        tools: Sequence[Mapping[str, object]] | None = None,
        **asked: object,
    ) -> ChatCompletion:
        """Raises: openai.BadRequestError at the end of context or budget, and what the model raises."""
        from openai.types.chat import ChatCompletion

        limits = self._limits(asked, partial(check_messages, messages), tools)
        reply = await self._sampled(self.model.chat(list(messages), tools=tools or None, **limits))
        message: dict[str, object] = {"role": "assistant", "content": str(reply.message["content"])}
        message["reasoning_content"] = reply.reasoning
        if calls := _calls(reply):
            message["tool_calls"] = calls
        finish = _finish(reply) if not calls else "tool_calls"
        choice = {"index": 0, "finish_reason": finish, "message": message, "logprobs": None}
        answer = self._answer(model, "chat.completion", reply)
        return ChatCompletion.model_validate({**answer, "choices": [choice]})

    async def _complete(
        self, *, prompt: str | Sequence[int] = "", model: str = "", **asked: object
    ) -> Completion:
        """Raises: as `_chat`."""
        from openai.types.completion import Completion

        limits = self._limits(asked, partial(check_prompt, prompt))
        reply = await self._sampled(self.model.complete(prompt, **limits))
        choice = {"index": 0, "finish_reason": _finish(reply), "text": reply.content, "logprobs": None}
        answer = self._answer(model, "text_completion", reply)
        return Completion.model_validate({**answer, "choices": [choice]})

    def _limits(
        self, asked: Mapping[str, object], check: Callable[[], None], tools: object = None
    ) -> AskedLimits:
        try:
            check()
            return checked_limits(asked, self._sampling, tools)
        except RowError as err:
            self.error = err
            raise

    async def _sampled(self, asked: Awaitable[Reply]) -> Reply:
        try:
            reply = await asked
        except (ContextOverflow, BudgetSpent) as err:
            self.end = RolloutEnd.CONTEXT if isinstance(err, ContextOverflow) else RolloutEnd.BUDGET
            raise _overlong() from err
        except Exception as err:
            self.error = err
            raise
        return reply

    def _answer(self, model: str, kind: str, reply: Reply) -> dict[str, object]:
        return {
            "id": f"turn{self.model.turns}",
            "created": int(time.time()),
            "model": model,
            "object": kind,
            "usage": _usage(reply),
        }


def _finish(reply: Reply) -> str:
    return "length" if reply.finish_reason == FinishReason.LENGTH else "stop"


def _calls(reply: Reply) -> list[dict[str, object]]:
    """The valid calls of a reply, with their arguments as the JSON text that programs expect."""
    return [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in reply.message.get("tool_calls", ())
    ]


def _usage(reply: Reply) -> dict[str, int] | None:
    """None where an endpoint does not say it."""
    sent, said = reply.prompt_tokens, reply.sampled_tokens
    if sent is None or said is None:
        return None
    return {"prompt_tokens": sent, "completion_tokens": said, "total_tokens": sent + said}


def _overlong() -> Exception:
    import httpx2
    import openai

    request = httpx2.Request("POST", "http://rollout/v1/chat/completions")
    response = httpx2.Response(400, request=request, text=_OVERLONG)
    return openai.BadRequestError(_OVERLONG, response=response, body=None)
