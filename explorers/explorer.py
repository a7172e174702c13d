"""Plays groups of rollouts of one workflow on one engine, all at once.

It neither chooses tasks nor stores what comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from rft_data.errors import RftError, RowError
from rft_data.protocols import Engine, Group, RolloutContext, Sampling, Workflow
from rft_data.rows import Experience, Task, Ticket, experience_id_of

T = TypeVar("T")


class GroupExplorer:
    """`group_size` rollouts per ticket; the engine batches whatever runs together."""

    def __init__(
        self,
        engine: Engine,
        workflow: Workflow,
        *,
        run_id: str,
        attempt: int,
        group_size: int,
        sampling: Sampling,
        eval_sampling: Sampling,
        explorer_id: str,
    ) -> None:
        """`sampling` is for groups, `eval_sampling` for evaluation; the rest names the experiences."""
        self._engine = engine
        self._workflow = workflow
        self._run_id = run_id
        self._attempt = attempt
        self._group_size = group_size
        self._sampling = sampling
        self._eval_sampling = eval_sampling
        self._explorer_id = explorer_id

    @property
    def engine(self) -> Engine:
        """The engine it plays on."""
        return self._engine

    def explore(self, assignments: Sequence[tuple[Ticket, Task]]) -> list[Group]:
        """Play every assignment; one Group per ticket, in order. A failed group keeps its good rollouts.

        Raises: RftError that is not about one row (ParityError, EngineError): no rollout could succeed.
        """
        return asyncio.run(_all([self._group(ticket, task) for ticket, task in assignments]))

    def evaluate(self, tasks: Sequence[Task], label: str) -> list[Experience]:
        """Play each task once; one row (of source `eval`, group `{label}-{task_id}`) and more if step-wise.

        A rollout that fails gives a row without tokens whose `unscored_reason` says why.
        """
        rows = asyncio.run(_all([self._evaluation(task, f"{label}-{task.task_id}") for task in tasks]))
        return [row for one in rows for row in one]

    async def _group(self, ticket: Ticket, task: Task) -> Group:
        rollouts = [
            self._rollout(task, self._context(ticket.group_id, member, "rollout", self._sampling))
            for member in range(self._group_size)
        ]
        outcomes = await asyncio.gather(*rollouts)
        played = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
        errors = [described(outcome) for outcome in outcomes if isinstance(outcome, Exception)]
        rows = tuple(row for rollout in played for row in rollout)
        if errors:
            return Group(ticket, task, rows, "failed", f"{len(errors)} of {len(outcomes)}: {errors[0]}")
        return Group(ticket, task, rows, "arrived")

    async def _evaluation(self, task: Task, group_id: str) -> list[Experience]:
        outcome = await self._rollout(task, self._context(group_id, 0, "eval", self._eval_sampling))
        if not isinstance(outcome, Exception):
            return outcome
        return [
            Experience(
                experience_id=experience_id_of(self._run_id, task.key, self._attempt, group_id, 0),
                source="eval",
                run_id=self._run_id,
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=group_id,
                attempt=self._attempt,
                explorer_id=self._explorer_id,
                messages=task.messages,
                prompt_messages=len(task.messages),
                unscored_reason=f"rollout failed: {described(outcome)}",
            )
        ]

    def _context(self, group_id: str, member: int, source: str, sampling: Sampling) -> RolloutContext:
        return RolloutContext(
            run_id=self._run_id,
            group_id=group_id,
            member=member,
            attempt=self._attempt,
            explorer_id=self._explorer_id,
            source=source,
            sampling=sampling,
        )

    async def _rollout(self, task: Task, context: RolloutContext) -> list[Experience] | Exception:
        """The rows of one rollout, or what went wrong in it: a bad rollout is data, not a crash."""
        try:
            return await self._workflow.run(task, self._engine, context)
        except RowError as err:
            return err
        except RftError:
            raise
        except Exception as err:  # noqa: BLE001 - workflows and rewards are user code
            return err


def described(error: Exception) -> str:
    """Type and message of an error."""
    return f"{type(error).__name__}: {error}"


async def _all(work: Sequence[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*work))
