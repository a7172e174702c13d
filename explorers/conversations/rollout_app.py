"""The protocol of an OpenAI server for one rollout: its program speaks to it, and its model answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from explorers.capture.asgi import Receive, Scope, Send
from rft_data.core.rows import Experience, Task
from rft_data.core.words import RolloutEnd
from rft_data.core.workflow import RolloutContext

MODEL = "policy"
"""The model's name."""
OVER = "the rollout has ended, so nothing is sampled for it any more."


class RolloutApp(Protocol):
    """ASGI application; paths are `/v1/...`. All its methods are called in one event loop."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        ...

    @property
    def answering(self) -> int:
        """Requests that are being answered."""
        ...

    @property
    def turns(self) -> int:
        """Turns sampled so far."""
        ...

    @property
    def held(self) -> int:
        """Tokens that its rows have so far."""
        ...

    @property
    def end(self) -> RolloutEnd | None:
        """The limit that ended the rollout."""
        ...

    @property
    def error(self) -> Exception | None:
        """Error of a request that failed, which the program may have swallowed."""
        ...

    def rows(self, task: Task, ctx: RolloutContext) -> list[Experience]:
        """The rows of what was sampled so far, without a reward."""
        ...

    async def close(self) -> None:
        """Give up what is being sampled, so that the rollout's turns change no more."""
        ...
