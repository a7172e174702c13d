"""The explorer role: an engine, a workflow, rewards, and a way to the buffer, made from plain arguments.

It plays what it is given and stores every group as soon as it is complete. It chooses no task, judges no
row and decides nothing about versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from explorers.limits import recipe_limits
from explorers.meter import Meter, MeteredEngine
from explorers.rewards.scoring import Rewards, make_rewards
from explorers.workflows.groups import GroupPlayer, together
from explorers.workflows.rollouts import Rollouts
from explorers.workflows.single_turn import SingleTurn
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.lookup import load, lookup, need
from rft_data.core.protocols import BufferClient, Engine, Sampling, Workflow
from rft_data.core.rows import Assignment, Experience, Played, Task, WeightRef

ENGINES: Mapping[str, str] = {
    "transformers": "explorers.engines.transformers_engine:TransformersEngine",
    "vllm": "explorers.engines.vllm_engine:VllmEngine",
}
"""Import paths: an engine's library is loaded only when it is named."""

WORKFLOWS: Mapping[str, Any] = {"single_turn": SingleTurn}

_APPENDS = 8
"""Appends of one explorer under way at a time; the buffer puts them into common commits."""
_EVALUATED = 512
"""Rows of an evaluation in one append."""


class LiveEngine(Engine, Protocol):
    """An engine whose weights can be swapped while it is asked."""

    async def swap_weights(self, ref: WeightRef) -> float:
        """`load_weights` in its turn among the requests under way."""
        ...


class ExplorerRole:
    """Methods a conductor calls; coroutines run beside each other in one event loop."""

    def __init__(
        self, buffer: BufferClient, engine: LiveEngine, player: GroupPlayer, rewards: Rewards, meter: Meter
    ) -> None:
        """`player` plays on `engine`, and scores by `rewards`."""
        self._buffer = buffer
        self._engine = engine
        self._player = player
        self._rewards = rewards
        self._meter = meter
        self._restarts = 0
        self._appends = ThreadPoolExecutor(_APPENDS, "explorer-append")

    async def explore(self, assignments: list[Assignment]) -> list[Played]:
        """Play every assignment, all at once; what became of each, in order, when all rows are stored.

        Raises: EngineError, ParityError when no rollout could succeed, and what the buffer raises (for
            example StalledError); groups stored by then stay stored.
        """
        return await together([self._play(assignment) for assignment in assignments])

    async def evaluate(self, tasks: list[Task], label: str, samples: int = 1) -> list[int]:
        """Play each task and store the rows: once, greedily, or `samples` times as groups are sampled.

        Returns: their row numbers, in order of the tasks, without those the door refused.
        Raises: as `explore`.
        """
        sampling = self._player.sampling
        if samples == 1:
            sampling = replace(sampling, temperature=0.0)
        answers = await together(
            [self._player.answer(task, label, n, sampling) for task in tasks for n in range(samples)]
        )
        rows = [row for answer in answers for row in answer]
        stored: list[int] = []
        for first in range(0, len(rows), _EVALUATED):
            stored += await self._append(rows[first : first + _EVALUATED])
        return stored

    async def load_weights(self, ref: WeightRef) -> float:
        """Serve other weights from now on.

        Returns: the largest difference of logprobs on their probe (nats).
        Raises: ParityError, IntegrityError, EngineError, as the engine does.
        """
        with self._meter.during("loading"):
            return await self._engine.swap_weights(ref)

    def version(self) -> int:
        """The version the engine has proved to serve.

        Raises: ParityError when there is none.
        """
        return self._engine.version

    async def metrics(self) -> dict[str, float]:
        """What happened since the last call; see `Meter.take`."""
        restarts, self._restarts = self._rewards.restarts - self._restarts, self._rewards.restarts
        return {**self._meter.take(), "reward_restarts": float(restarts)}

    def close(self) -> None:
        """Free the engine and end the reward processes; idempotent."""
        self._rewards.close()
        self._engine.close()
        self._appends.shutdown(wait=False, cancel_futures=True)

    async def _play(self, assignment: Assignment) -> Played:
        group = await self._player.play(assignment.ticket, assignment.task)
        seqs = await self._append(group.experiences)
        return Played(
            ticket=group.ticket,
            task=group.task.key,
            outcome=group.outcome,
            seqs=tuple(seqs),
            rows=len(group.experiences),
            error=group.error,
        )

    async def _append(self, rows: Sequence[Experience]) -> list[int]:
        """Store rows without holding up the event loop; the numbers of those the door let in."""
        if not rows:
            return []
        loop = asyncio.get_running_loop()
        appended = await loop.run_in_executor(self._appends, self._buffer.append, rows)
        return [seq for seq in appended.seqs if seq is not None]


def explorer_role(
    buffer: BufferClient,
    *,
    engine: Mapping[str, Any],
    model: str,
    run_id: str,
    attempt: int,
    explorer_id: str,
    group_size: int,
    sampling: Mapping[str, Any],
    reward: list[Mapping[str, Any]],
    workflow: Mapping[str, Any],
    limits: Mapping[str, Any],
    greedy_member: bool = False,
) -> ExplorerRole:
    """Build an explorer from JSON values.

    Args:
        engine: `use` (a name in ENGINES, or an import path) and the arguments of its class.
        model: Hugging Face folder; its architecture and tokenizer count, its weights are never served.
        sampling: fields of `Sampling`.
        reward: `{"use", "weight", "args"}` each, as `make_rewards` takes them.
        workflow: `use` (a name in WORKFLOWS, or an import path) and `args`; see `make_workflow`.
        limits: fields of `Limits`, those that differ from the defaults.
        greedy_member: whether member 0 of every group is decoded greedily.

    Raises: RecipeError, UnknownComponentError, MissingExtraError; whatever was started is ended then.
    """
    meter, bounds = Meter(), recipe_limits(limits, group_size)
    with ExitStack() as undo:
        rewards = make_rewards(reward, bounds, meter)
        undo.callback(rewards.close)
        played = make_workflow(workflow, model, rewards)
        served = make_engine(engine, model)
        undo.callback(served.close)
        player = GroupPlayer(
            Rollouts(MeteredEngine(served, meter), played, bounds, meter),
            run_id=run_id,
            attempt=attempt,
            explorer_id=explorer_id,
            group_size=group_size,
            sampling=Sampling(**sampling),
            limits=bounds,
            meter=meter,
            greedy_member=greedy_member,
        )
        role = ExplorerRole(buffer, served, player, rewards, meter)
        undo.pop_all()
    meter.take()  # the time it took to build all this is nobody's idleness
    return role


def make_engine(settings: Mapping[str, Any], model: str) -> LiveEngine:
    """The engine that is named; never another one instead.

    Raises: UnknownComponentError; MissingExtraError when its package is not installed; RecipeError for
        arguments it does not take.
    """
    name = str(settings["use"])
    kind = load(name if ":" in name else lookup(name, ENGINES, "engine"), "engine")
    arguments = {key: value for key, value in settings.items() if key != "use"}
    try:
        built: LiveEngine = kind(Path(model), **arguments)
    except TypeError as err:
        raise RecipeError(f"explorer.engine '{name}' does not take {sorted(arguments)}: {err}.") from err
    return built


def make_workflow(settings: Mapping[str, Any], model: str, rewards: Rewards) -> Workflow:
    """The workflow that is named, called as `Class(tokenizer, rewards, **args)`.

    Raises: UnknownComponentError; RecipeError when it cannot be built with `args`.
    """
    name, args = str(settings["use"]), dict(settings.get("args") or {})
    kind = lookup(name, WORKFLOWS, "workflow")
    transformers = need("transformers", "train", "the tokenizer of a model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    try:
        built: Workflow = kind(tokenizer, rewards, **args)
    except RftError:
        raise
    except Exception as err:  # a workflow's constructor is user code
        raise RecipeError(
            f"workflow '{name}' cannot be built with the arguments {sorted(args)} ({type(err).__name__}: "
            f"{err}); "
            "mend explorer.workflow.args in the recipe."
        ) from err
    return built
