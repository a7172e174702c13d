"""Asks a judge prompt by prompt, in one event loop, as the prompts come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ops.judge.judge_client import JudgeClient
from ops.judge.judge_endpoint import JudgeEndpoint
from ops.judge.judge_reply import Reply


class JudgeAsker:
    """One judge. Replies are cached, and equal prompts under way are asked once."""

    def __init__(self, client: JudgeClient) -> None:
        """Read the key; nothing is asked yet. Raises: OperatorError without it."""
        client.read_key()
        self._client = client
        self._endpoint: JudgeEndpoint | None = None
        self._slots = asyncio.Semaphore(client.spending.limits.concurrency)
        self._asking: dict[str, asyncio.Task[Reply]] = {}

    async def ask(self, prompt: str, usable: Callable[[str], bool]) -> Reply:
        """The reply to a prompt, or its error. Cancelling it leaves the call to those who wait beside it.

        Args: usable: whether a reply is kept; another one is asked for again when the prompt comes again.
        """
        key = self._client.content_key(prompt)
        found = self._client.cache.find([key])
        if key in found:
            return Reply(found[key])
        if key not in self._asking:
            self._asking[key] = asyncio.create_task(self._ask(key, prompt, usable))
            self._asking[key].add_done_callback(partial(self._forget, key))
        return await asyncio.shield(self._asking[key])

    async def _ask(self, key: str, prompt: str, usable: Callable[[str], bool]) -> Reply:
        async with self._slots:
            if self._endpoint is None:
                self._endpoint = self._client.open_endpoint()
            reply, tokens = await self._endpoint.reply(prompt)
        if not reply.error and usable(reply.text):
            with self._client.cache.adding() as add:
                add(key, reply.text, tokens)
        return reply

    def _forget(self, key: str, _: asyncio.Task[Reply]) -> None:
        del self._asking[key]
