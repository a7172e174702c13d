"""The explorer role: plays tasks with an engine, a workflow and rewards, and stores the rollouts.

It stores every group soon after it is complete. It chooses no task, runs no operator and decides nothing
about versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from explorers.engines.images import images_from
from explorers.engines.make import LiveEngine, engine_metrics, engine_rest, make_engine, takes_messages
from explorers.meter import Meter, metered
from explorers.plan import ExplorerPlan
from explorers.rewards.scoring import Rewards, make_rewards
from explorers.shared_appends import SharedAppends
from explorers.workflows.groups import GroupPlayer, together
from explorers.workflows.make import (
    close_workflow,
    make_workflows,
    needs_texts,
    workflow_metrics,
    workflow_stored,
)
from explorers.workflows.rollouts import Rollouts
from rft_data.core.engine import Sampling
from rft_data.core.groups import Assignment, Played
from rft_data.core.lookup import need
from rft_data.core.protocols import BufferClient
from rft_data.core.rows import Experience, Task, WeightRef
from rft_data.core.vocabulary import with_tokens
from rft_data.core.workflow import Workflow
from rft_data.placement.hub.node_files import node_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EVALUATED = 512
"""From so many rows on an evaluation stores what it has; the rows of one task are never parted."""


class ExplorerRole:
    """The methods that a conductor calls; its coroutines run concurrently in one event loop."""

    def __init__(
        self,
        buffer: BufferClient,
        engine: LiveEngine,
        player: GroupPlayer,
        rewards: Rewards,
        workflow: Workflow,
        meter: Meter,
    ) -> None:
        self._engine = engine
        self._player = player
        self._rewards = rewards
        self._workflow = workflow
        self._meter = meter
        self._restarts = 0
        self._buffer = buffer
        self._bases: set[str] = set()
        """Folders of models, which adapters are merged into, that are here."""
        self._appends = SharedAppends(buffer)

    async def explore(self, assignments: list[Assignment]) -> list[Played]:
        """Play all assignments at once and store their rows; returns one result for each, in their order.

        Raises: EngineError, ParityError when no rollout could succeed, and what the buffer raises (for
            example StalledError); groups stored by then stay stored.
        """
        return await together([self._play(assignment) for assignment in assignments])

    async def evaluate(self, tasks: list[Task], label: str, samples: int = 1) -> list[int]:
        """Play each task once, greedily, or `samples` times with the sampling of groups; store the rows.

        Returns: the row numbers, in order of the tasks, without rows that validation refused.
        Raises: as `explore`.
        """
        sampling = self._player.sampling
        if samples == 1:
            sampling = replace(sampling, temperature=0.0)
        answers = await together([self._answers(task, label, samples, sampling) for task in tasks])
        rows: list[Experience] = []
        stored: list[int] = []
        for place, answer in enumerate(answers, start=1):
            rows += answer
            if len(rows) >= _EVALUATED or place == len(answers):
                stored += await self._appends.append_now(rows)
                rows = []
        return stored

    async def load_weights(self, ref: WeightRef) -> float:
        """Load and prove other weights; they are served from then on.

        The model that an adapter is merged into is copied to this node before, if it is not here.

        Returns: the largest difference of logprobs on their probe (nats).
        Raises: ParityError, IntegrityError, EngineError, as the engine does; ConflictError when this node
            has another model in that folder.
        """
        with self._meter.during("loading"):
            if ref.base and ref.base not in self._bases:
                await asyncio.to_thread(node_files(self._buffer).fetch, Path(ref.base))
                self._bases.add(ref.base)
            return await self._engine.swap_weights(ref)

    async def sleep(self) -> None:
        """Free the engine's GPUs for a trainer that shares them; idempotent.

        Raises: EngineError while rollouts are under way.
        """
        engine_rest(self._engine).sleep()

    async def wake(self) -> None:
        """Take them back; idempotent."""
        engine_rest(self._engine).wake()

    def version(self) -> int:
        """The policy version that the engine has proved.

        Raises: ParityError when there is none.
        """
        return self._engine.version

    async def metrics(self) -> dict[str, float]:
        """Counts and times since the last call; see `Meter.take`, and `metrics` of workflow and engine."""
        restarts, self._restarts = self._rewards.restarts - self._restarts, self._rewards.restarts
        return {
            **workflow_metrics(self._workflow),
            **engine_metrics(self._engine),
            **self._meter.take(),
            "reward_restarts": float(restarts),
        }

    def close(self) -> None:
        """Free the engine, close environments and end the reward processes; idempotent."""
        close_workflow(self._workflow)
        self._rewards.close()
        self._engine.close()
        self._appends.close()

    async def _answers(
        self, task: Task, label: str, samples: int, sampling: Sampling
    ) -> Sequence[Experience]:
        answers = await together([self._player.answer(task, label, n, sampling) for n in range(samples)])
        return await self._player.scored(task, dict(enumerate(answers)))

    async def _play(self, assignment: Assignment) -> Played:
        with self._appends.playing():
            group = await self._player.play(assignment.ticket, assignment.task)
        seqs = await self._appends.append(group.experiences)
        if len(seqs) == len(group.experiences):  # none was refused
            workflow_stored(self._workflow, group.experiences)
        return Played(
            ticket=group.ticket,
            task=group.task.key,
            outcome=group.outcome,
            seqs=tuple(seqs),
            rows=len(group.experiences),
            error=group.error,
        )


def explorer_role(buffer: BufferClient, *, plan: Mapping[str, object]) -> ExplorerRole:
    """Build an explorer.

    Args: plan: an ExplorerPlan as JSON (`ExplorerPlan.from_json`).
    Raises: RecipeError, UnknownComponentError, MissingExtraError; all that was started is ended first.
    """
    parts = ExplorerPlan.from_json(plan)
    limits = parts.groups.limits
    meter = Meter()
    if not takes_messages(parts.engine):
        node_files(buffer).fetch(Path(parts.model))
    with ExitStack() as undo:
        rewards = make_rewards(parts.reward, limits, meter)
        undo.callback(rewards.close)
        tokenizer = None if takes_messages(parts.engine) else load_tokenizer(parts.model)
        workflow = make_workflows(parts.workflow, parts.workflows, tokenizer, rewards)
        undo.callback(close_workflow, workflow)
        engine = make_engine(parts.engine, parts.model, texts=needs_texts(workflow))
        undo.callback(engine.close)
        images_from(engine, lambda name: buffer.payload(name)[1])
        rollouts = Rollouts(metered(engine, meter), workflow, limits, meter)
        role = ExplorerRole(
            buffer, engine, GroupPlayer(rollouts, parts.groups, meter, rewards), rewards, workflow, meter
        )
        undo.pop_all()
    meter.take()  # the time of building all this is not idle time
    return role


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder.

    Raises: MissingExtraError without transformers; RecipeError when it has no tokens but special ones.
    """
    transformers = need("transformers", "train", "the tokenizer of a model")
    return with_tokens(transformers.AutoTokenizer.from_pretrained(model), model)
