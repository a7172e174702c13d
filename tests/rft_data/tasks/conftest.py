"""Tasks, and groups of rollouts of them as a run stores them."""

from collections.abc import Callable, Sequence

import pytest

from rft_data.buffer import Buffer
from rft_data.core.rows import Task
from tests.rft_data.conftest import make_experience


def make_tasks(count: int, taskset: str = "sums") -> list[Task]:
    return [
        Task(taskset, ({"role": "user", "content": f"What is {n} plus one?"},), str(n + 1))
        for n in range(count)
    ]


@pytest.fixture
def play(buffer: Buffer) -> Callable[..., str]:
    """(task, rewards, version=0, run_id="run", outcome="arrived") stores one group; returns its id."""
    stored: list[str] = []

    def one(
        task: Task,
        rewards: Sequence[float | None],
        version: int = 0,
        run_id: str = "run",
        outcome: str = "arrived",
    ) -> str:
        number = len(stored)
        group_id = f"{run_id}/g-{number}"
        rows = [
            make_experience(
                number * 100 + member,
                run_id=run_id,
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=group_id,
                member=member,
                reward=reward,
                completion_text=f"line one\nline two of {number}\nthe answer is {member}",
            )
            for member, reward in enumerate(rewards)
        ]
        seqs = buffer.append(rows).seqs
        buffer.add_rows(
            "groups",
            [
                {
                    "group_id": group_id,
                    "run_id": run_id,
                    "ordinal": number,
                    "round": number,
                    "attempt": 0,
                    "taskset": task.taskset,
                    "task_id": task.task_id,
                    "version": version,
                    "version_min": version,
                    "outcome": outcome,
                    "rewards": list(rewards),
                    "seqs": list(seqs),
                    "dropped_by": "",
                    "error": "",
                }
            ],
        )
        stored.append(group_id)
        return group_id

    return one
