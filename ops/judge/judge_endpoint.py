"""One model at one OpenAI-compatible endpoint; the openai package makes the calls and the retries.

Imported when the first prompt is asked: openai takes most of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx2
import openai

from ops.judge.judge_call import Reply, Spending, without_key

_SHOWN = 200
"""Characters of an endpoint's answer that an error quotes."""


class JudgeEndpoint:
    """Makes calls in one event loop. Leaving its `async with` block closes the connections."""

    def __init__(
        self, base_url: str, model: str, sampling: Mapping[str, Any], key: str | None, spending: Spending
    ) -> None:
        """Nothing is asked yet.

        Args:
            sampling: further fields of every request.
            key: sent as the bearer token; None: no key is sent.
            spending: counts every try, and refuses it when the budget is spent.
        """
        limits = spending.limits
        self._model, self._sampling = model, sampling
        self._key, self._spending = key, spending
        # Without these the library sends what OPENAI_* variables hold, which is for another endpoint.
        self._headers: dict[str, str | openai.Omit] = {
            "Authorization": f"Bearer {key}" if key else openai.omit,
            "OpenAI-Organization": openai.omit,
            "OpenAI-Project": openai.omit,
        }
        at_once = limits.concurrency
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=key or "none",
            # the pool's own waits would count as time-outs of calls
            timeout=httpx2.Timeout(limits.timeout_s, pool=None),
            max_retries=limits.retries,
            http_client=openai.DefaultAsyncHttpxClient(
                limits=httpx2.Limits(max_connections=at_once, max_keepalive_connections=at_once),
                follow_redirects=False,
                event_hooks={"request": [self._count], "response": [self._check]},
            ),
        )

    async def __aenter__(self) -> JudgeEndpoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def ask(self, prompt: str) -> tuple[Reply, int]:
        """The reply to a prompt after as many tries as it takes and may take, and its tokens."""
        try:
            answer = await self._client.chat.completions.with_raw_response.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                extra_body=self._sampling,
                extra_headers=self._headers,
            )
        except openai.OpenAIError as err:
            return Reply("", self._reason(err)), 0
        text, tokens = _read(answer.http_response)
        self._spending.tokens += tokens
        return Reply(text), tokens

    async def _count(self, request: httpx2.Request) -> None:
        """Raises: OpenAIError when the budget is spent; the library does not try again after one."""
        if refusal := self._spending.refusal():
            raise openai.OpenAIError(refusal)
        self._spending.calls += 1

    async def _check(self, response: httpx2.Response) -> None:
        """Raises: DecodingError for an answer that is no completion; the library tries again after one."""
        if response.status_code != 200:
            return
        await response.aread()
        try:
            _read(response)
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            why = f"the answer is no chat completion: {self._shown(response.text)}"
            raise httpx2.DecodingError(why, request=response.request) from err

    def _reason(self, error: openai.OpenAIError) -> str:
        """Why the library gave up."""
        if isinstance(error, openai.APIStatusError):
            return f"status {error.status_code}: {self._shown(error.response.text)}"
        if isinstance(error, openai.APITimeoutError):
            return f"no reply within {self._spending.limits.timeout_s:g} s"
        cause = error.__cause__ or error
        own = isinstance(cause, httpx2.DecodingError | openai.OpenAIError)  # worded by `_check` or `_count`
        return without_key(str(cause) if own else f"{type(cause).__name__}: {cause}", self._key)

    def _shown(self, text: str) -> str:
        return without_key(text, self._key)[:_SHOWN]


def _read(answer: httpx2.Response) -> tuple[str, int]:
    """Text and tokens of a chat completion. Raises: ValueError, LookupError, TypeError, AttributeError."""
    data = answer.json()
    text = str(data["choices"][0]["message"]["content"] or "")
    return text, int((data.get("usage") or {}).get("total_tokens") or 0)
