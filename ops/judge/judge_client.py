"""Asks a language model behind an OpenAI-compatible endpoint: many prompts at once, each distinct one once.

Bounded in calls in flight, calls, tokens and time; retries what may pass; knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from ops.judge.judge_cache import JudgeCache
from rft_data.core.errors import OperatorError
from rft_data.core.lookup import need
from rft_data.core.rows import content_id

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_REMEMBERED_S = 60.0
"""How long a prompt that failed is not asked again: a batch is searched for its bad rows by halving it."""
_SHOWN = 200
"""Characters of a foreign answer that an error quotes."""
_OWN = ("model", "messages", "n", "stream")
_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What the calls may cost."""

    concurrency: int = 16
    """Calls in flight at a time."""
    retries: int = 3
    """Further tries of a call after status 408, 409, 425, 429 or 5xx, a time-out or a broken connection."""
    timeout_s: float = 60.0
    """For one call."""
    deadline_s: float = 600.0
    """For one batch of prompts, waits between tries included; what is not answered by then has failed."""
    max_calls: int | None = None
    """Calls of this process, tries included; None: no bound."""
    max_total_tokens: int | None = None
    """Tokens (prompt and reply) of this process, as the endpoint counts them; calls in flight may go over."""

    def __post_init__(self) -> None:
        """Raises: ValueError for limits under which nothing could be asked."""
        if self.concurrency < 1 or self.retries < 0 or not (self.timeout_s > 0 and self.deadline_s > 0):
            raise ValueError(
                f"limits are {self}; wanted concurrency >= 1, retries >= 0, timeout_s and deadline_s > 0"
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one prompt."""

    text: str
    """The reply; empty when it failed."""
    error: str = ""
    """Why there is none; empty when there is one."""


class _CallFailed(Exception):
    """One call brought no reply."""

    def __init__(self, why: str, *, again: bool, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.again = again
        self.pause_s = pause_s


class JudgeClient:
    """One model at one endpoint. Not for several threads at a time."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        sampling: Mapping[str, Any],
        limits: CallLimits,
        cache: JudgeCache,
        api_key_env: str | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            base_url: up to and with `/v1`.
            sampling: further fields of the request (temperature, max_tokens, ...); part of the cache's key.
            api_key_env: NAME of the environment variable that holds the key; None: no key is sent.
        Raises: ValueError for no url, no model, or a field of `sampling` that is the client's own.
        """
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {base_url!r}; wanted http://... or https://... up to /v1")
        if not model:
            raise ValueError("no model is given; wanted its name at the endpoint")
        if own := [name for name in _OWN if name in sampling]:
            raise ValueError(f"sampling sets {own}, which are the operator's own; leave them out")
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model, self._sampling, self._limits = model, dict(sampling), limits
        self._cache, self._api_key_env = cache, api_key_env
        self._key: str | None = None
        self._failed: dict[str, tuple[float, str]] = {}
        self.calls = 0
        """Calls made, tries included."""
        self.tokens = 0
        """Tokens they took."""

    def ask_all(self, prompts: Sequence[str]) -> list[Reply]:
        """One reply for each prompt; equal prompts and those in the cache are not asked again.

        Raises: OperatorError when the key's environment variable is not set, or holds no key;
            MissingExtraError.
        """
        keys = [content_id(self._url, self._model, prompt, self._sampling) for prompt in prompts]
        asked = dict(zip(keys, prompts, strict=True))
        replies = {key: Reply(text) for key, text in self._cache.find(list(asked)).items()}
        replies.update(self._lately_failed())
        missing = {key: prompt for key, prompt in asked.items() if key not in replies}
        if missing:
            headers = self._headers()
            # A thread of its own: the caller's may have a running event loop.
            with ThreadPoolExecutor(1, "judge") as thread:
                replies.update(thread.submit(asyncio.run, self._ask_missing(missing, headers)).result())
        return [replies[key] for key in keys]

    def without_key(self, text: str) -> str:
        """`text` with *** for the key, which an endpoint may echo and a library may quote."""
        return text.replace(self._key, "***") if self._key else text

    def _lately_failed(self) -> dict[str, Reply]:
        oldest = time.monotonic() - _REMEMBERED_S
        self._failed = {key: seen for key, seen in self._failed.items() if seen[0] > oldest}
        return {key: Reply("", error) for key, (_, error) in self._failed.items()}

    def _headers(self) -> dict[str, str]:
        if self._api_key_env is None:
            return {}
        # files that keys are read from end in a line break
        key = os.environ.get(self._api_key_env, "").strip()
        if not key:
            raise OperatorError(
                f"the judge's key is to be in the environment variable '{self._api_key_env}', which is not "
                "set; set it, or take 'api_key_env' out of the recipe."
            )
        if not (key.isascii() and key.isprintable()):
            raise OperatorError(
                f"the judge's key in the environment variable '{self._api_key_env}' has characters that no "
                "key has; wanted printable ASCII. Set it anew."
            )
        self._key = key
        return {"Authorization": f"Bearer {key}"}

    async def _ask_missing(self, missing: Mapping[str, str], headers: dict[str, str]) -> dict[str, Reply]:
        httpx = need("httpx", "ops", "asking a judge")
        at_once = self._limits.concurrency
        slots = asyncio.Semaphore(at_once)
        end = asyncio.get_running_loop().time() + self._limits.deadline_s
        # The pool's own waits would count as time-outs of calls: `slots` does the waiting.
        pool = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
        async with httpx.AsyncClient(headers=headers, limits=pool, timeout=None) as http:
            with self._cache.adding() as add:
                found = await asyncio.gather(
                    *(
                        self._ask(http, slots, end, prompt, partial(add, key))
                        for key, prompt in missing.items()
                    )
                )
        replies = dict(zip(missing, found, strict=True))
        # However long the batch took, its failures are fresh when it is searched for its bad rows.
        done = time.monotonic()
        self._failed.update((key, (done, reply.error)) for key, reply in replies.items() if reply.error)
        return replies

    async def _ask(
        self, http: Any, slots: asyncio.Semaphore, end: float, prompt: str, add: Callable[[str, int], None]
    ) -> Reply:
        try:
            async with asyncio.timeout_at(end):
                text, tokens = await self._tried(http, slots, prompt)
        except TimeoutError:
            error = f"no reply within the batch's {self._limits.deadline_s:g} s"
        except _CallFailed as err:
            error = str(err)
        else:
            add(text, tokens)
            return Reply(text)
        return Reply("", error)

    async def _tried(self, http: Any, slots: asyncio.Semaphore, prompt: str) -> tuple[str, int]:
        attempt = 0
        while True:
            try:
                async with slots:
                    self._spend_a_call()
                    return await self._called(http, prompt)
            except _CallFailed as err:
                if not err.again or attempt == self._limits.retries:
                    raise
                longest = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                pause = max(err.pause_s, longest * (0.5 + random.random() / 2))  # noqa: S311  only spreads calls
            await asyncio.sleep(pause)
            attempt += 1

    def _spend_a_call(self) -> None:
        calls, tokens = self._limits.max_calls, self._limits.max_total_tokens
        if calls is not None and self.calls >= calls:
            raise _CallFailed(f"the budget of {calls} calls is spent", again=False)
        if tokens is not None and self.tokens >= tokens:
            raise _CallFailed(f"the budget of {tokens} tokens is spent", again=False)
        self.calls += 1

    async def _called(self, http: Any, prompt: str) -> tuple[str, int]:
        """One call: (reply, tokens)."""
        httpx = need("httpx", "ops", "asking a judge")
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}], **self._sampling}
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                answer = await http.post(self._url, json=body)
        except TimeoutError as err:
            raise _CallFailed(f"no reply within {self._limits.timeout_s:g} s", again=True) from err
        except httpx.HTTPError as err:
            raise _CallFailed(self.without_key(f"{type(err).__name__}: {err}"), again=True) from err
        if answer.status_code != 200:
            status = answer.status_code
            again = status in _WORTH_ANOTHER_TRY or status >= 500
            why = f"status {status}: {self.without_key(answer.text)[:_SHOWN]}"
            raise _CallFailed(why, again=again, pause_s=_pause_asked_for(answer))
        try:
            data = answer.json()
            text = str(data["choices"][0]["message"]["content"] or "")
            tokens = int((data.get("usage") or {}).get("total_tokens") or 0)
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            why = f"the answer is no chat completion: {self.without_key(answer.text)[:_SHOWN]}"
            raise _CallFailed(why, again=True) from err
        self.tokens += tokens
        return text, tokens


def _pause_asked_for(answer: Any) -> float:
    """Seconds of the header Retry-After, bounded; 0 without one, or with a date."""
    value = answer.headers.get("retry-after", "")
    return min(float(value), _LONGEST_PAUSE_S) if value.isdigit() else 0.0
