"""The reward `reward_server`: the score of a reward model that runs behind an HTTP server of its own.

One POST holds several conversations, `{"conversations": [[{"role", "content"}, ...], ...]}`; the answer is
`{"rewards": [number, ...]}`, one for each, or `{"unscored": reason, "cause": cause}` in a number's place.
`rft reward-server` is such a server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from explorers.rewards.contract import is_finite
from ops.endpoint.calls import without_key
from ops.endpoint.key import endpoint_key
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import need
from rft_data.core.rows import Message, Task
from rft_data.core.text import shown
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

if TYPE_CHECKING:
    import httpx2

_TOGETHER_S = 0.01
"""How long the first conversation of a request waits for others."""
_TOO_MANY = 429
_LONGEST_WAIT_S = 10.0


class RewardServer:
    """The server's score of the task's messages and the completion; it has no fixed range."""

    deadline_s = 60.0

    def __init__(
        self, url: str, batch: int = 32, api_key_env: str | None = None, deadline_s: float = 60.0
    ) -> None:
        """Nothing is asked yet.

        Args:
            url: where conversations are posted. batch: most of them in one request.
            api_key_env: NAME of the variable whose value is sent as the bearer token; None: none is sent.
            deadline_s: for one completion.
        Raises: ValueError for another url or a batch below 1; RecipeError without the key; MissingExtraError.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or batch < 1:
            raise ValueError(
                f"url is {url!r} and batch {batch}; wanted http://... or https://..., and 1 or more"
            )
        key = endpoint_key(api_key_env, "reward_server's key", RecipeError)
        self._url = url
        self._batch = batch
        self.deadline_s = deadline_s
        self._key = key
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._httpx = need("httpx2", "ops", "the reward reward_server")
        self._client: httpx2.AsyncClient | None = None
        self._waiting: list[tuple[Sequence[Message], asyncio.Future[float | Unscored]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored, as a failure of the infrastructure, when the server gives no number for it."""
        messages = [*map(dict, task.messages), {"role": "assistant", "content": completion}]
        answer: asyncio.Future[float | Unscored] = asyncio.get_running_loop().create_future()
        self._waiting.append((messages, answer))
        if len(self._waiting) == 1:
            sending = asyncio.create_task(self._send_soon())
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        return await answer

    async def _send_soon(self) -> None:
        """Send what is waiting by then, in requests that run beside each other."""
        await asyncio.sleep(_TOGETHER_S)
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        parts = [waiting[start : start + self._batch] for start in range(0, len(waiting), self._batch)]
        await asyncio.gather(*map(self._send, parts))

    async def _send(self, part: Sequence[tuple[Sequence[Message], asyncio.Future[float | Unscored]]]) -> None:
        waiting = [answer for _, answer in part]
        try:
            found = await self._rewards([messages for messages, _ in part])
        except Exception as err:  # noqa: BLE001 - for those who wait, who would never hear of it
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(err)
            return
        for place, answer in enumerate(waiting):
            if not answer.done():
                answer.set_result(found if isinstance(found, Unscored) else found[place])

    async def _post(self, client: httpx2.AsyncClient, asked: Mapping[str, object]) -> httpx2.Response:
        """The answer to a request, made again while the server has too much to do and there is time left."""
        end = time.monotonic() + self.deadline_s
        while True:
            answer = await client.post(self._url, json=asked)
            wait_s = _retry_after_s(answer.headers.get("Retry-After", ""))
            if answer.status_code != _TOO_MANY or time.monotonic() + wait_s > end:
                return answer
            await asyncio.sleep(wait_s)

    async def _rewards(self, conversations: Sequence[Sequence[Message]]) -> list[float | Unscored] | Unscored:
        if self._client is None:
            self._client = self._httpx.AsyncClient(timeout=self.deadline_s, headers=self._headers)
        try:
            answer = await self._post(self._client, {"conversations": conversations})
            rewards = _rewards(answer.json(), len(conversations)) if answer.status_code == 200 else None
        except (self._httpx.HTTPError, ValueError, RecursionError) as err:
            return Unscored(
                f"the reward server failed: {type(err).__name__}: {err}", UnscoredCause.INFRASTRUCTURE
            )
        if rewards is None:
            said = f"status {answer.status_code}, {shown(without_key(answer.text, self._key))}"
            return Unscored(f"the reward server gave no rewards: {said}", UnscoredCause.INFRASTRUCTURE)
        return rewards


def _rewards(answer: object, wanted: int) -> list[float | Unscored] | None:
    """The rewards of an answer; None when they are not as many finite numbers, or reasons, as wanted."""
    rewards = answer.get("rewards") if isinstance(answer, Mapping) else None
    if not isinstance(rewards, list) or len(rewards) != wanted:
        return None
    found = [_reward(one) for one in rewards]
    return None if None in found else [one for one in found if one is not None]


def _reward(told: object) -> float | Unscored | None:
    if isinstance(told, Mapping) and isinstance(told.get("unscored"), str):
        cause = told.get("cause")
        return Unscored(told["unscored"], UnscoredCause(cause)) if cause in list(UnscoredCause) else None
    return float(told) if is_finite(told) else None


def _retry_after_s(header: str) -> float:
    """Seconds to wait, with some spread so that clients do not come back together."""
    asked = float(header) if header.isdecimal() else 1.0
    return min(asked, _LONGEST_WAIT_S) * random.uniform(1.0, 1.5)  # noqa: S311 - no secret depends on it
