"""Plays groups of rollouts and evaluations. It neither chooses tasks nor stores rows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from explorers.clock import RolloutClock, started
from explorers.conversations.rows import row_names
from explorers.ledger import Cost
from explorers.meter import Meter
from explorers.plan import GroupPlan
from explorers.rewards.contract import error_cause
from explorers.rewards.group_scoring import score_group, without_group
from explorers.rewards.scoring import Rewards
from explorers.rewards.unscored import reason_text
from explorers.workflows.group_world import group_world, world_scored
from explorers.workflows.rollouts import Rollouts, described
from rft_data.core.engine import Sampling
from rft_data.core.errors import RftError
from rft_data.core.groups import Group, Ticket
from rft_data.core.rows import Experience, Task
from rft_data.core.words import ROLLOUT_SECONDS, BurnCause, GroupOutcome, RowSource
from rft_data.core.workflow import RolloutContext, Unscored

T = TypeVar("T")
Member = asyncio.Task[list[Experience] | Exception]
"""A rollout of a group at play."""


class GroupPlayer:
    """Plays the rollouts of a ticket all at once, so that the engine can batch them."""

    def __init__(
        self, rollouts: Rollouts, plan: GroupPlan, meter: Meter, rewards: Rewards | None = None
    ) -> None:
        """`rewards`: needed where a reward looks at whole groups."""
        self._rollouts = rollouts
        self._rewards = rewards
        self._plan = plan
        self._meter = meter

    async def play(self, ticket: Ticket, task: Task) -> Group:
        """Play one group: start `extra` rollouts more than its size and keep the first that succeed.

        A failed group keeps its good rollouts. A group without its greedy member has failed.
        Raises: RftError that is not about one row (ParityError, EngineError): no rollout could succeed.
        """
        started = self._plan.size + self._plan.limits.extra
        contexts = [
            self._context(ticket.group_id, n, RowSource.ROLLOUT, self._member_sampling(n))
            for n in range(started)
        ]
        costs = [Cost() for _ in contexts]
        members = {
            asyncio.create_task(self._counted(task, ctx, costs[ctx.member])): ctx.member for ctx in contexts
        }
        group: Group | None = None
        try:
            arrived, errors = await self._arrivals(members)
            group = await self._group(ticket, task, arrived, errors)
            return group
        finally:
            self._forget(task, ticket.group_id)
            kept = {row.member for row in group.experiences} if group is not None else None
            for one, member in members.items():
                cause = _burn_cause(one, member, kept)
                if cause is None and group is not None and group.outcome == GroupOutcome.FAILED:
                    cause = BurnCause.GROUP_FAILED
                self._meter.ledger.close(costs[member], cause, compared=group is not None)

    async def _arrivals(self, members: Mapping[Member, int]) -> tuple[dict[int, list[Experience]], list[str]]:
        """The rows of the members that are kept, in order, and the errors of those that failed."""
        arrived: dict[int, list[Experience]] = {}
        errors: list[str] = []
        waiting = set(members)
        try:
            while waiting and len(arrived) < self._plan.size:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in sorted(done, key=members.__getitem__):
                    outcome = one.result()
                    if isinstance(outcome, Exception):
                        errors.append(described(outcome))
                    elif self._has_place(members[one], arrived):
                        arrived[members[one]] = outcome
                    else:
                        self._meter.count("rollouts_surplus")
        finally:
            await cancelled(members)
        return dict(sorted(arrived.items())), errors

    async def _counted(self, task: Task, ctx: RolloutContext, cost: Cost) -> list[Experience] | Exception:
        """Play a rollout, count what it costs, and note on its last row where its seconds went."""
        cost.begin()
        clock = started()
        try:
            outcome = await self._rollouts.play(task, ctx)
        finally:
            cost.end()
        if isinstance(outcome, Exception) or ctx.source is RowSource.EVAL:
            return outcome  # an answer that is measured again is the same row, so it holds no time
        return _timed(outcome, clock)

    async def _group(
        self, ticket: Ticket, task: Task, arrived: Mapping[int, list[Experience]], errors: Sequence[str]
    ) -> Group:
        """The outcome of a group, by the rollouts that arrived and the errors of those that failed."""
        whole = 0 in arrived or not self._plan.greedy_member
        salvaged = whole and len(arrived) >= (self._plan.limits.min_members or self._plan.size)
        if len(arrived) == self._plan.size or salvaged:
            if len(arrived) < self._plan.size:
                self._meter.count("groups_salvaged")
            return Group(ticket, task, await self.scored(task, arrived), GroupOutcome.ARRIVED)
        why = f"{len(errors)} of {self._plan.size + self._plan.limits.extra}: {errors[0]}"
        rows = [row for member in arrived.values() for row in member]
        if self._waits(task):
            rows = without_group(rows)
        return Group(ticket, task, tuple(rows), GroupOutcome.FAILED, why)

    async def scored(self, task: Task, arrived: Mapping[int, Sequence[Experience]]) -> tuple[Experience, ...]:
        """The rows of a task's rollouts, by member, with the rewards that look at all of them."""
        if not arrived or not self._waits(task):
            return tuple(row for rows in arrived.values() for row in rows)
        members, deadline_s = arrived, self._plan.limits.rollout_deadline_s
        with self._meter.during("rewarding"):
            if (world := group_world(self._rollouts.workflow, task)) is not None:
                members = await world_scored(world, task, members, deadline_s)
            if self._rewards is not None:
                members = await score_group(self._rewards, task, members, deadline_s)
        for member, rows in members.items():
            if not any(row.unscored_reason for row in arrived[member]):
                self._meter.unscored(rows)
        return tuple(row for rows in members.values() for row in rows)

    def _waits(self, task: Task) -> bool:
        """Whether a reward of the world or of the recipe looks at whole groups."""
        of_recipe = self._rewards is not None and self._rewards.waits_for_group(task)
        return of_recipe or group_world(self._rollouts.workflow, task) is not None

    def _forget(self, task: Task, group_id: str) -> None:
        """Have the world forget a group that was not scored."""
        if (world := group_world(self._rollouts.workflow, task)) is not None:
            world.forget_group(task, group_id)

    def _member_sampling(self, member: int) -> Sampling:
        if self._plan.greedy_member and member == 0:
            return replace(self._plan.sampling, temperature=0.0)
        return self._plan.sampling

    def _has_place(self, member: int, arrived: Collection[int]) -> bool:
        """Whether the group is not full; one place is reserved for the greedy member."""
        kept = self._plan.greedy_member and member != 0 and 0 not in arrived
        return len(arrived) + kept < self._plan.size

    @property
    def sampling(self) -> Sampling:
        """How rollouts of groups are sampled."""
        return self._plan.sampling

    async def answer(self, task: Task, label: str, member: int, sampling: Sampling) -> list[Experience]:
        """Play a task once: rows of source `eval` and group `{label}-{task_id}`.

        A rollout that fails gives a row without tokens whose `unscored_reason` says why.
        """
        ctx = self._context(f"{label}-{task.task_id}", member, RowSource.EVAL, sampling)
        try:
            outcome = await self._evaluated(task, ctx)
        except BaseException:
            self._forget(task, ctx.group_id)
            raise
        if not isinstance(outcome, Exception):
            return outcome
        return [
            Experience(
                **row_names(task, ctx),
                messages=task.messages,
                prompt_messages=len(task.messages),
                unscored_reason=reason_text(
                    "rollout failed", Unscored(described(outcome), error_cause(outcome))
                ),
            )
        ]

    async def _evaluated(self, task: Task, ctx: RolloutContext) -> list[Experience] | Exception:
        cost = Cost()
        cause: BurnCause | None = BurnCause.CANCELLED
        try:
            outcome = await self._counted(task, ctx, cost)
            cause = _failure(outcome) if isinstance(outcome, Exception) else None
            return outcome
        except RftError:
            cause = BurnCause.FAILED
            raise
        finally:
            self._meter.ledger.close(cost, cause, compared=False)

    def _context(self, group_id: str, member: int, source: RowSource, sampling: Sampling) -> RolloutContext:
        return RolloutContext(
            run_id=self._plan.run_id,
            group_id=group_id,
            member=member,
            attempt=self._plan.attempt,
            explorer_id=self._plan.explorer_id,
            source=source,
            sampling=sampling,
        )


def _timed(rows: list[Experience], clock: RolloutClock) -> list[Experience]:
    last = rows[-1]
    return [*rows[:-1], replace(last, metadata={**last.metadata, ROLLOUT_SECONDS: clock.take()})]


def _burn_cause(one: Member, member: int, kept: Collection[int] | None) -> BurnCause | None:
    """Reason why a rollout is in no group; None where it is in one. `kept`: None when there is no group."""
    if not one.done() or one.cancelled():
        return BurnCause.CANCELLED
    if one.exception() is not None:
        return BurnCause.FAILED
    outcome = one.result()
    if isinstance(outcome, Exception):
        return _failure(outcome)
    if kept is None:
        return BurnCause.CANCELLED
    return None if member in kept else BurnCause.SURPLUS


def _failure(error: Exception) -> BurnCause:
    return BurnCause.TIMEOUT if isinstance(error, TimeoutError) else BurnCause.FAILED


async def together(work: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """All results, in order. On the first error the others are cancelled before it is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancelled(tasks)


async def cancelled(tasks: Collection[asyncio.Task[object]]) -> None:
    """Cancel those of `tasks` that are not done and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
