"""Asks a language model behind an OpenAI-compatible endpoint: many prompts at once, each distinct one once.

It caches replies, remembers failures for a minute and limits the time of a batch. `judge_endpoint` makes the
calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ops.endpoint.calls import CallLimits, Spending, without_key
from ops.endpoint.key import endpoint_key
from ops.judge.judge_cache import JudgeCache
from ops.judge.judge_reply import Reply
from rft_data.core.canonical import content_id
from rft_data.core.errors import OperatorError
from rft_data.core.lookup import need

if TYPE_CHECKING:
    from ops.judge.judge_endpoint import JudgeEndpoint

_REMEMBERED_S = 60.0
"""How long a failed prompt is not asked again: the pipeline halves a batch to find its bad rows."""
_OWN = ("model", "messages", "n", "stream")


class JudgeClient:
    """One model at one endpoint. Not for several threads at a time."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        sampling: Mapping[str, object],
        limits: CallLimits,
        cache: JudgeCache,
        api_key_env: str | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            base_url: up to and with `/v1`.
            sampling: further fields of the request (temperature, max_tokens, ...); part of the cache's key.
            api_key_env: NAME of the environment variable that holds the key; None: no key is sent.
        Raises: ValueError for no url, no model, or a field of `sampling` that the client sets itself.
        """
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {base_url!r}; wanted http://... or https://... up to /v1")
        if not model:
            raise ValueError("no model is given; wanted its name at the endpoint")
        if own := [name for name in _OWN if name in sampling]:
            raise ValueError(f"sampling sets {own}, which are the operator's own; leave them out")
        self._base_url = base_url.rstrip("/")
        self._model, self._sampling = model, dict(sampling)
        self.cache, self._api_key_env = cache, api_key_env
        self._key: str | None = None
        self._failed: dict[str, tuple[float, str]] = {}
        self.spending = Spending(limits)

    def ask_all(self, prompts: Sequence[str]) -> list[Reply]:
        """One reply for each prompt; equal prompts and those in the cache are not asked again.

        Raises: OperatorError when the key's environment variable is not set, or holds no key;
            MissingExtraError.
        """
        keys = [self.content_key(prompt) for prompt in prompts]
        asked = dict(zip(keys, prompts, strict=True))
        replies = {key: Reply(text) for key, text in self.cache.find(list(asked)).items()}
        replies.update(self._lately_failed())
        missing = {key: prompt for key, prompt in asked.items() if key not in replies}
        if missing:
            self.read_key()
            # A thread of its own: the caller's may have a running event loop.
            with ThreadPoolExecutor(1, "judge") as thread:
                replies.update(thread.submit(asyncio.run, self._ask_missing(missing)).result())
        return [replies[key] for key in keys]

    def without_key(self, text: str) -> str:
        """`text` with *** for the key."""
        return without_key(text, self._key)

    def _lately_failed(self) -> dict[str, Reply]:
        oldest = time.monotonic() - _REMEMBERED_S
        self._failed = {key: seen for key, seen in self._failed.items() if seen[0] > oldest}
        return {key: Reply("", error) for key, (_, error) in self._failed.items()}

    def content_key(self, prompt: str) -> str:
        """Key under which a reply is stored: a hash of endpoint, model, prompt and sampling."""
        url = f"{self._base_url}/chat/completions"
        return content_id(url, self._model, prompt, self._sampling)

    def open_endpoint(self) -> JudgeEndpoint:
        """Connections for calls in the running event loop; `read_key` comes first.

        Raises: MissingExtraError.
        """
        endpoints = need("ops.judge.judge_endpoint", "ops", "asking a judge")
        opened: JudgeEndpoint = endpoints.JudgeEndpoint(
            self._base_url, self._model, self._sampling, self._key, self.spending
        )
        return opened

    def read_key(self) -> None:
        """Read the key from the environment, where one is wanted.

        Raises: OperatorError when its variable is not set, or holds no key.
        """
        self._key = endpoint_key(self._api_key_env, "the judge's key", OperatorError)

    async def _ask_missing(self, missing: Mapping[str, str]) -> dict[str, Reply]:
        slots = asyncio.Semaphore(self.spending.limits.concurrency)
        end = asyncio.get_running_loop().time() + self.spending.limits.deadline_s
        async with self.open_endpoint() as endpoint:
            with self.cache.adding() as add:
                found = await asyncio.gather(
                    *(
                        self._ask(endpoint, slots, end, prompt, partial(add, key))
                        for key, prompt in missing.items()
                    )
                )
        replies = dict(zip(missing, found, strict=True))
        # Failures count from the end of the batch: the search for bad rows starts then.
        done = time.monotonic()
        self._failed.update((key, (done, reply.error)) for key, reply in replies.items() if reply.error)
        return replies

    async def _ask(
        self,
        endpoint: JudgeEndpoint,
        slots: asyncio.Semaphore,
        end: float,
        prompt: str,
        add: Callable[[str, int], None],
    ) -> Reply:
        try:
            async with asyncio.timeout_at(end), slots:
                reply, tokens = await endpoint.reply(prompt)
        except TimeoutError:
            return Reply("", f"no reply within the batch's {self.spending.limits.deadline_s:g} s")
        if not reply.error:
            add(reply.text, tokens)
        return reply
