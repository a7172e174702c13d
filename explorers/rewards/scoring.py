"""The reward of a recipe: its components, each computed here (trusted) or in a child process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from explorers import clock
from explorers.limits import Limits
from explorers.meter import RETRIED, Meter
from explorers.rewards.composition import Composition, RewardColumns, RewardPart, is_open
from explorers.rewards.contract import Judged, Outcome, RewardKind, Subject, group_size, judge, reward_kind
from explorers.rewards.registry import built_in_kind, is_trusted, make_reward
from explorers.rewards.reward_calls import Scored
from explorers.rewards.reward_lane import RewardLane
from explorers.rewards.reward_pool import RewardPool
from explorers.rewards.unscored import asked_again
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.core.trajectory import Trajectory
from rft_data.core.workflow import Unscored

_BACKOFF_S = 0.2
_RECIPE = "explorer.reward"


class Rewards:
    """Scores finished rollouts; the reward is the weighted sum of the parts, None if one is unscored.

    A task that names a reward of its own is scored by that component alone. A call that failed for a reason
    outside of the model (`WORLD_FAILURES`) is made again, so often as `retries` says.
    """

    def __init__(
        self,
        composition: Composition | Mapping[str, float],
        local: Mapping[str, Callable[..., object]],
        pool: RewardPool | None = None,
        meter: Meter | None = None,
        *,
        lane: RewardLane | None = None,
        retries: int = 1,
    ) -> None:
        """`composition`: or the weights of plain components; those not in `local` are computed by children.

        Raises: RecipeError when a reward takes what none may take.
        """
        self._composition = (
            composition if isinstance(composition, Composition) else Composition.weighted(composition)
        )
        self._local = local
        self._kinds: dict[str, RewardKind] = {name: reward_kind(one, name) for name, one in local.items()}
        self._pool, self._lane = pool, lane
        self._meter = meter or Meter()
        self._retries = retries
        self._learn_kinds()

    @property
    def restarts(self) -> int:
        """How often a child process of a reward had to be started again."""
        return sum(children.restarts for children in (self._pool, self._lane) if children)

    @property
    def composition(self) -> Composition:
        """The components and how they make one number."""
        return self._composition

    def kind(self, name: str) -> RewardKind:
        """How a component is called."""
        return self._kinds[name]

    def is_of_groups(self, part: RewardPart) -> bool:
        """Whether a component looks at whole groups: it is computed when all rollouts are there."""
        return self._kinds[part.name].subject is Subject.GROUP

    def waits_for_group(self, task: Task) -> bool:
        """Whether a component of this task's reward looks at whole groups."""
        chosen = self._composition.chosen(task)
        return not isinstance(chosen, Unscored) and any(map(self.is_of_groups, chosen))

    async def score(self, task: Task, judged: str | Trajectory) -> RewardColumns:
        """The reward columns of an experience: `reward`, `reward_parts`, `unscored_reason`.

        Args: judged: the completion, or the whole rollout where rewards are to see more of it.
        Components that look at whole groups are added when the group is there; the reward is open until then.
        """
        chosen = self._composition.chosen(task)
        if isinstance(chosen, Unscored):
            return self._composition.columns({task.reward or _RECIPE: chosen})
        own = [part for part in chosen if not self.is_of_groups(part)]
        with self._meter.during("rewarding"), clock.during("rewarding"):
            found = await self._outcomes(own, task, judged)
        return self._composition.columns(found, whole=len(own) == len(chosen))

    async def ask(self, name: str, task: Task, judged: Judged) -> Scored:
        """The outcome of one component; it is called again after a failure outside the model."""
        for retry in range(self._retries + 1):
            if retry:
                self._meter.count(RETRIED)
                await asyncio.sleep(_BACKOFF_S * 2 ** (retry - 1))
            scored = await self._asked(name, task, judged)
            self._meter.reward_took(scored.seconds)
            if not any(isinstance(one, Unscored) and asked_again(one.cause) for one in scored.outcomes):
                break
        return scored

    def score_all(self, pairs: Sequence[tuple[Task, str]]) -> list[RewardColumns]:
        """`score` for many completions at once, from outside of an event loop."""

        async def all_at_once() -> list[RewardColumns]:
            return await asyncio.gather(*(self.score(task, completion) for task, completion in pairs))

        return asyncio.run(all_at_once())

    def close(self) -> None:
        """End the child processes; idempotent."""
        for children in (self._pool, self._lane):
            if children:
                children.close()

    async def _outcomes(
        self, parts: Sequence[RewardPart], task: Task, judged: str | Trajectory
    ) -> dict[str, Outcome]:
        """Every component's outcome, in order; components behind a gate run once what it reads is known."""
        found: dict[str, Outcome] = {}
        waiting = list(parts)
        while waiting:
            names = {part.name for part in waiting}
            ready = [part for part in waiting if part.gate is None or part.gate.reward not in names]
            waiting = [part for part in waiting if part not in ready]
            running = [part for part in ready if is_open(part.gate, found)]
            found.update(await self._together(running, task, judged))
        return {part.name: found[part.name] for part in parts if part.name in found}

    async def _together(
        self, parts: Sequence[RewardPart], task: Task, judged: str | Trajectory
    ) -> dict[str, Outcome]:
        """Components that do not depend on each other; those in children run while the others do."""
        away = {
            part.name: asyncio.ensure_future(self.ask(part.name, task, judged))
            for part in parts
            if part.name not in self._local
        }
        try:
            if away:
                await asyncio.sleep(0)  # sends them
            here = [part.name for part in parts if part.name in self._local]
            found = {name: (await self.ask(name, task, judged)).outcome for name in here}
            found.update({name: (await asking).outcome for name, asking in away.items()})
        finally:
            for asking in away.values():
                asking.cancel()  # the rollout was cancelled; no effect on one that is done
        return found

    async def _asked(self, name: str, task: Task, judged: Judged) -> Scored:
        """The outcome of one call of a component."""
        kind = self._kinds[name]
        if kind.subject is Subject.COMPLETION and isinstance(judged, Trajectory):
            judged = judged.completion
        elif kind.subject is Subject.TRAJECTORY and isinstance(judged, str):
            judged = bare_trajectory(task, judged)
        if name in self._local:
            started = time.perf_counter()
            outcomes = judge(self._local[name], kind, task, judged)
            return Scored(outcomes, time.perf_counter() - started)
        children = self._lane if kind.asynchronous else self._pool
        if children is None:
            raise RecipeError(f"reward '{name}' has no process to be computed in; make it with make_rewards.")
        scored = await asyncio.wrap_future(children.submit(name, task, judged))
        return _for_each(scored, group_size(judged) or 1)

    def _learn_kinds(self) -> None:
        """Learn how components in children are called, and check the gates.

        Raises: RecipeError for a gate that would have to wait for the whole group.
        """
        if self._pool:
            self._kinds.update(self._pool.kinds)
        for part in self._composition.parts:
            self._kinds.setdefault(part.name, built_in_kind(part.use) or RewardKind(Subject.COMPLETION, ()))
        for part in self._composition.parts:
            before = None if part.gate is None else self._kinds[part.gate.reward].subject
            if before is Subject.GROUP and not self.is_of_groups(part):
                raise RecipeError(
                    f"reward '{part.name}' is of one rollout, and its only_if reads '{part.gate.reward}', "  # type: ignore[union-attr]
                    "which is known only when the whole group is; turn the gate around."
                )


def make_rewards(
    components: Sequence[Mapping[str, object]], limits: Limits, meter: Meter | None = None
) -> Rewards:
    """The reward that a recipe describes, its children started.

    Args: components: as `Composition.from_recipe` takes them.
    With no components the reward stays open: a workflow may have a reward of its own.
    Raises: RecipeError for a composition that cannot work, and what building a reward raises.
    """
    composition = Composition.from_recipe(components)
    local = {
        part.name: make_reward(part.use, part.args) for part in composition.parts if is_trusted(part.use)
    }
    away = [part for part in composition.parts if part.name not in local]
    known = {part.name: built_in_kind(part.use) for part in away}
    together = [part for part in away if _runs_together(known[part.name])]
    pool = _pool([part for part in away if part not in together], limits)
    lane = None
    try:
        if pool is not None:
            found = [part for part in away if part.name in pool.kinds]
            own = [part for part in found if pool.kinds[part.name].asynchronous]
            together += own
            if len(own) == len(found):
                pool.close()  # it has told what they are, and has nothing to do
        if together:
            lane = RewardLane(
                list(map(_component, together)),
                deadlines_s={part.name: _deadline_s(part, pool, limits) for part in together},
                memory_bytes=limits.reward_memory_mb << 20,
            )
        return Rewards(composition, local, pool, meter, lane=lane, retries=limits.retries)
    except BaseException:
        for children in (pool, lane):
            if children is not None:
                children.close()
        raise


def _pool(parts: Sequence[RewardPart], limits: Limits) -> RewardPool | None:
    if not parts:
        return None
    return RewardPool(
        list(map(_component, parts)),
        processes=limits.reward_processes,
        deadline_s=limits.reward_deadline_s,
        memory_bytes=limits.reward_memory_mb << 20,
    )


def _component(part: RewardPart) -> dict[str, object]:
    return {"use": part.use, "args": dict(part.args), "name": part.name}


def _runs_together(kind: RewardKind | None) -> bool:
    return kind is not None and kind.asynchronous


def _deadline_s(part: RewardPart, pool: RewardPool | None, limits: Limits) -> float:
    """Seconds for one call: the reward's own where it has one, else those of the recipe's limits."""
    told = pool.kinds.get(part.name) if pool else None
    kind = told or built_in_kind(part.use)
    own: Any = None if kind is None else kind.deadline_s
    if told is None:  # a built-in, which takes its deadline as an argument
        own = part.args.get("deadline_s", own)
    return limits.reward_deadline_s if own is None else float(own)


def _for_each(scored: Scored, members: int) -> Scored:
    """One outcome for each rollout: a process that died says the same of all."""
    if len(scored.outcomes) == members:
        return scored
    first = scored.outcome
    why = first if isinstance(first, Unscored) else Unscored("gave another number of values than rollouts")
    return replace(scored, outcomes=(why,) * members)


def bare_trajectory(task: Task, completion: str) -> Trajectory:
    """A rollout of which nothing but its text is known."""
    answer = {"role": "assistant", "content": completion}
    return Trajectory(task, completion, (*task.messages, answer), len(task.messages))
