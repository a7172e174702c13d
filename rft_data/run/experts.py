"""Solutions of tasks by experts: made by a function of the user's, or copied from stored answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rft_data.core.codec import from_table
from rft_data.core.errors import RowError
from rft_data.core.lookup import load
from rft_data.core.rows import Experience, Message, Task, TaskKey, experience_id_of
from rft_data.core.schema import EXPERIENCES
from rft_data.core.words import FinishReason, RowSource, Split
from rft_data.recipe.tasksets import Experts, StoredExperts
from rft_data.sampler.mixed_in import experts_prefix

if TYPE_CHECKING:
    from rft_data.buffer import Buffer

_COPIED = ("messages", "prompt_messages", "tools", "completion_text", "finish_reason", "payloads")
"""Columns of a stored answer that its copy as a solution has too."""


def expert_rows(section: Experts, member: int, tasks: Sequence[Task], run_id: str) -> list[Experience]:
    """Solutions by one expert for the first `limit` training tasks of each taskset, by task id.

    Args: member: the expert's place in the recipe; experts of one task form a group.
    """
    solve: Callable[[Task], str | list[Message]] = load(section.use, "expert")
    rows = []
    for task in expert_tasks(section, tasks):
        group_id = f"{run_id}/expert-{task.task_id}"
        solution = _solution(section.use, solve(task))
        rows.append(
            Experience(
                experience_id=experience_id_of(run_id, task.key, 0, group_id, member),
                source=RowSource.EXPERT,
                run_id=run_id,
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=group_id,
                member=member,
                explorer_id=section.use,
                messages=(*task.messages, *solution),
                prompt_messages=len(task.messages),
                completion_text=str(solution[-1]["content"]),
                finish_reason=FinishReason.STOP,
                reward=1.0,
            )
        )
    return rows


def copied_answers(section: StoredExperts, buffer: Buffer, run_id: str, heldout: float) -> list[Experience]:
    """Stored answers as solutions of this run's experts, each a group of its own.

    Args: heldout: share of prompts, by content hash, whose answers are left out.
    Raises: TrainingError with the numbers that the buffer has when no row is left.
    """
    from trainers.offline.stored_rows import RowChoice, chosen_rows

    choice = RowChoice(**section.model_dump(exclude={"use", "limit"}))
    rows = []
    for row in from_table(chosen_rows(buffer, choice, heldout).table, EXPERIENCES):
        if row["run_id"] == run_id:  # copied already, by a start that was killed
            continue
        task, group_id = (
            TaskKey(row["taskset"], row["task_id"]),
            f"{experts_prefix(run_id)}{row['experience_id']}",
        )
        rows.append(
            Experience(
                experience_id=experience_id_of(run_id, task, 0, group_id, 0),
                source=RowSource.EXPERT,
                run_id=run_id,
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=group_id,
                explorer_id=row["run_id"],
                **{name: row[name] for name in _COPIED},
                reward=1.0,
                metadata={**row["metadata"], "copied_from": row["experience_id"]},
            )
        )
    return rows[: section.limit]


def expert_tasks(section: Experts, tasks: Sequence[Task]) -> list[Task]:
    """The tasks an expert solves."""
    chosen: list[Task] = []
    for name in section.tasksets:
        eligible = [task for task in tasks if task.split == Split.TRAIN and task.taskset == name]
        chosen += sorted(eligible, key=lambda task: task.task_id)[: section.limit]
    return chosen


def _solution(expert: str, given: object) -> list[Message]:
    """The messages of an expert's solution. Raises: RowError when it is no text and no such messages."""
    if isinstance(given, str):
        return [{"role": "assistant", "content": given}]
    messages = given if isinstance(given, list) else []
    whole = all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in messages)
    if messages and whole and messages[-1]["role"] == "assistant":
        return messages
    raise RowError(
        f"expert '{expert}' gave {given!r:.200}; wanted a text, or messages that end with an assistant's."
    )
