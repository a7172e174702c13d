"""A world of real users: a rollout is a trajectory that a client of the run's own server opens and ends."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from explorers.capture.listening import LOOPBACK, listening
from explorers.conversations.rollout_app import RolloutApp
from explorers.rewards.scoring import Rewards
from explorers.workflows.model_server import ModelServer
from explorers.workflows.openings import Openings
from explorers.workflows.recorded import ConversationArguments, Course, RecordedWorkflow, whole_number
from explorers.workflows.server_settings import SMALL
from explorers.workflows.visit import Visit
from explorers.workflows.visits import Visits
from rft_data.core.engine import Engine
from rft_data.core.errors import RecipeError, RftError, RowError
from rft_data.core.lookup import need
from rft_data.core.rows import Experience, Task
from rft_data.core.words import TRAJECTORY, RolloutEnd
from rft_data.core.workflow import RolloutContext

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

_BUDGET = 1 << 20
"""Most tokens that a trajectory samples where the recipe says no `budget`: its memory is this process's."""
_ROOM = 4 << 20
"""Most tokens that its rows may have, or four times the budget if that is more: prompts are kept too."""
_CLOSE_S = 15.0
"""Longest wait for the requests under way when the server ends."""


class ServedWorkflow(RecordedWorkflow):
    """Waits for a client's trajectory and makes rows of it; the client's reward is the world's.

    As many trajectories are recorded as the sampler admits, so the bound of staleness holds whatever the
    traffic. Clients beyond those are guests: they are served, and nothing of them is stored.
    """

    def __init__(  # noqa: PLR0913 - the arguments are the keys that recipes give
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        token: str,
        host: str = LOOPBACK,
        port: int = 0,
        idle_s: float = 600.0,
        guests: int = 256,
        alike: float | None = None,
        server: str | Mapping[str, object] = SMALL,
        **conversation: Unpack[ConversationArguments],
    ) -> None:
        """Check the arguments; the server starts with the first rollout and ends with the explorer.

        Args:
            tokenizer: the model's.
            rewards: the recipe's, beside the client's.
            token: opens trajectories; in a recipe `${env:NAME}`.
            host: where to listen; beside other addresses than this machine's a proxy speaks TLS.
            port: 0 for a free one, which the log names.
            idle_s: a trajectory without a request for so long is over.
            guests: most of them at a time.
            alike: groups are of trajectories whose first requests are alike: 1 the same, below 1 so large a
                share of their words (Jaccard); None: of whoever comes.
            server: what answers clients; see `ModelServer`.
            conversation: further arguments of `RecordedWorkflow`.

        Raises: RecipeError; MissingExtraError without uvicorn.
        """
        conversation["budget"] = budget = conversation.get("budget") or _BUDGET
        super().__init__(tokenizer, rewards, **conversation)
        self.room = max(_ROOM, 4 * budget)
        need("uvicorn", "web", "the workflow 'served'")
        if isinstance(idle_s, bool) or not isinstance(idle_s, int | float) or not 0 < idle_s < math.inf:
            raise RecipeError(f"explorer.workflow.args.idle_s is {idle_s!r}; wanted seconds above 0.")
        whole_number("port", port, least=0)
        self._visits = Visits(
            token,
            self._guest,
            idle_s=idle_s,
            guests=whole_number("guests", guests, least=0),
            openings=None if alike is None else Openings(_share(alike)),
        )
        told = conversation.get("chat_template_kwargs")
        self._server = ModelServer(self, server, told)
        self._place = (host, port)
        self._newest: tuple[Engine, RolloutContext] | None = None
        self._serving: tuple[asyncio.AbstractEventLoop, AsyncExitStack] | None = None
        self._starting = asyncio.Lock()

    @property
    def needs_texts(self) -> bool:
        """Whether the engine needs the model's tokenizer."""
        return self._server.is_vllm

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Wait for a trajectory to be opened and ended.

        Raises: RowError for one that was given up, or in which nothing was sampled; BusyError for a port that
            is taken.
        """
        await self._serve()
        self._newest = (engine, ctx)
        app = await self._server.app(engine, ctx)
        async with self._visits.waiting(app, ctx.group_id) as visit:
            ended = await visit.until_over()
        try:
            return await self._rows(task, ctx, visit, ended=ended)
        except BaseException:
            visit.settle(stored=False)
            raise

    async def _rows(self, task: Task, ctx: RolloutContext, visit: Visit, *, ended: bool) -> list[Experience]:
        """The rows of a trajectory that is over. Raises: as `run`."""
        app, course = visit.app, Course()
        if isinstance(app.error, RftError) and not isinstance(app.error, RowError):
            raise app.error  # the engine's fault, which only its client has seen
        if visit.abandoned:
            raise RowError("its client gave the trajectory up")
        rows = [
            replace(one, metadata={**one.metadata, TRAJECTORY: visit.name}) for one in app.rows(task, ctx)
        ]
        if rows:
            self._visits.becomes(visit, rows[-1].experience_id)
        course.turns = app.turns
        course.end = app.end or (RolloutEnd.FINISHED if ended else RolloutEnd.DEADLINE)
        course.reward = visit.access.reward
        *rows, last = await self.outcome(task, rows, course)
        if course.reward is None and not self._rewards.composition.parts:
            last = replace(last, unscored_reason=None)  # it may come later, as feedback
        return [*rows, last]

    def stored(self, rows: Sequence[Experience]) -> None:
        """Rows of its rollouts are stored: their clients, who wait for that, are answered."""
        for row in rows:
            self._visits.stored(row.experience_id)

    def metrics(self) -> dict[str, float]:
        """Counts since the last call."""
        return {**super().metrics(), **self._visits.take_counts()}

    def close(self) -> None:
        """End the server, when the requests under way are answered; not called in the server's event loop."""
        if self._serving is None:
            return
        loop, stack = self._serving
        self._serving = None
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(_CLOSE_S)
        elif not loop.is_closed():
            loop.run_until_complete(stack.aclose())

    async def _serve(self) -> None:
        async with self._starting:
            if self._serving is None:
                stack = AsyncExitStack()
                address = await stack.enter_async_context(self._listening(self._visits))
                self._serving = asyncio.get_running_loop(), stack
                log.info("programs reach the policy at %s/trajectories", address)

    def _listening(self, visits: Visits) -> AbstractAsyncContextManager[str]:
        """Serves clients inside the block; gives the address."""
        host, port = self._place
        return listening(visits, host=host, port=port)

    async def _guest(self) -> RolloutApp | None:
        """The model of a trajectory that no rollout waits for."""
        if self._newest is None:
            return None
        engine, ctx = self._newest
        return await self._server.app(engine, ctx)


def _share(alike: object) -> float:
    """Raises: RecipeError."""
    if isinstance(alike, bool) or not isinstance(alike, int | float) or not 0 < alike <= 1:
        raise RecipeError(
            f"explorer.workflow.args.alike is {alike!r}; wanted a share above 0, at most 1 (equal requests)."
        )
    return float(alike)
