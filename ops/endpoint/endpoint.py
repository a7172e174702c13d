"""One OpenAI-compatible endpoint; the openai package makes the calls and the retries.

Imported when something is asked for the first time: openai takes most of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx2
import openai

from ops.endpoint.calls import (
    BudgetGone,
    EndpointDown,
    EndpointLate,
    EndpointRefusal,
    NoAnswer,
    Spending,
    without_key,
)

_SHOWN = 200
"""Characters of an endpoint's answer that an error quotes."""
_MAY_PASS = (408, 409, 429)
"""Statuses below 500 after which the library tries again."""
_BYTES_PER_TOKEN = 4
"""Bytes of a request for one token, roughly."""


class Endpoint:
    """Makes calls in one event loop. Leaving its `async with` block closes the connections."""

    def __init__(self, base_url: str, key: str | None, spending: Spending) -> None:
        """Nothing is asked yet.

        Args:
            base_url: up to and with `/v1`.
            key: sent as the bearer token; None: no key is sent.
            spending: counts every try, spreads them over time, and refuses them when the budget is spent.
        """
        limits = spending.limits
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(
        self, model: str, messages: list[dict[str, Any]], fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The chat completion of a conversation, after as many tries as it takes and may take.

        Args: fields: further fields of the request.
        Returns: the answer as it came; `choices[0].message` is an object.
        Raises: EndpointDown, EndpointLate, EndpointRefusal, BudgetGone.
        """
        booking = await self._spending.pace.book(_estimate(messages, fields))
        try:
            answer = await self._client.chat.completions.with_raw_response.create(
                model=model,
                messages=messages,  # type: ignore[arg-type]  # plain JSON values
                extra_body=fields,
                extra_headers=self._headers,
            )
        except openai.OpenAIError as err:
            booking.tokens = 0
            raise self._failure(err) from None  # the library's own error quotes the request
        data: dict[str, Any] = answer.http_response.json()
        booking.tokens = total_tokens(data) or _estimated(messages, data["choices"][0]["message"])
        self._spending.tokens += booking.tokens
        return data

    async def _count(self, request: httpx2.Request) -> None:
        """Raises: _Spent when the budget is; the library does not try again after one."""
        await self._spending.pace.next_try()
        if refusal := self._spending.refusal():
            raise _SpentError(refusal)
        self._spending.calls += 1

    async def _check(self, response: httpx2.Response) -> None:
        """Raises: DecodingError for an answer that is no completion; the library tries again after one."""
        if response.status_code != 200:
            return
        await response.aread()
        try:
            data = response.json()
            whole = isinstance(data["choices"][0]["message"], dict)
            total_tokens(data)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):  # 1e999 is JSON
            whole = False
        if not whole:
            why = f"the answer is no chat completion: {self._shown(response.text)}"
            raise httpx2.DecodingError(why, request=response.request)

    def _failure(self, error: openai.OpenAIError) -> NoAnswer:
        """Reason for which the library gave up."""
        if isinstance(error, _SpentError):
            return BudgetGone(str(error))
        if isinstance(error, openai.APIStatusError):
            status = error.status_code
            why = f"status {status}: {self._shown(error.response.text)}"
            if status >= 500 or status in _MAY_PASS:
                return EndpointDown(why)
            return EndpointRefusal(why, status)
        if isinstance(error, openai.APITimeoutError):
            return EndpointLate(f"no reply within {self._spending.limits.timeout_s:g} s")
        cause = error.__cause__ or error
        if isinstance(cause, _SpentError):
            return BudgetGone(str(cause))
        own = isinstance(cause, httpx2.DecodingError)  # worded by `_check`
        return EndpointDown(without_key(str(cause) if own else f"{type(cause).__name__}: {cause}", self._key))

    def _shown(self, text: str) -> str:
        return without_key(text, self._key)[:_SHOWN]


class _SpentError(openai.OpenAIError):
    """The budget allows no further try."""


def total_tokens(answer: Mapping[str, Any]) -> int:
    """Tokens of prompt and reply, as the endpoint counted them; 0 where it says nothing."""
    usage = answer.get("usage") or {}
    parts = (int(usage.get(f"{part}_tokens") or 0) for part in ("prompt", "completion"))
    return int(usage.get("total_tokens") or 0) or sum(parts)


def _estimate(messages: list[dict[str, Any]], fields: Mapping[str, Any]) -> int:
    most = fields.get("max_tokens") or fields.get("max_completion_tokens") or 0
    return _estimated(messages) + int(most)


def _estimated(*said: object) -> int:
    """Tokens by the length of the text, where the endpoint did not count them."""
    return sum(len(str(one).encode(errors="replace")) for one in said) // _BYTES_PER_TOKEN
