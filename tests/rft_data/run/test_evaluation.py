"""Held-out figures against their definitions."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from rft_data.core.errors import EngineError
from rft_data.core.rows import Task, TaskKey
from rft_data.run.accuracy import accuracy, pass_at_k
from tests.rft_data.conftest import make_experience


def answers(task: int, *right: bool) -> list:
    return [
        make_experience(10 * task + n, task_id=f"t{task}", member=n, reward_parts={"exact": float(is_right)})
        for n, is_right in enumerate(right)
    ]


@dataclass(frozen=True)
class Asked:
    """As much of a task as these figures look at, under the id that its rows have."""

    key: TaskKey
    reward: str | None = None


def asked(rows: list) -> list:
    return [Asked(TaskKey(row.taskset, row.task_id)) for row in rows]


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    rng = np.random.default_rng(3)
    outcomes = [tuple(bool(x) for x in rng.random(6) < rate) for rate in (0.0, 0.2, 0.5, 1.0)]
    rows = [row for n, each in enumerate(outcomes) for row in answers(n, *each)]
    found = pass_at_k(rows, asked(rows), "exact")
    assert list(found) == ["1", "2", "4", "6"]
    for k, share in found.items():
        by_task = [[any(subset) for subset in combinations(each, int(k))] for each in outcomes]
        assert share == pytest.approx(np.mean([np.mean(one) for one in by_task]), abs=1e-12)


def test_pass_at_k_counts_failed_missing_and_other_turns_as_they_are() -> None:
    failed = make_experience(7, task_id="t0", member=1, reward_parts={}, source="eval")
    turns = [
        make_experience(20 + n, task_id="t2", member=0, turn=n, reward_parts={"exact": float(n == 1)})
        for n in range(2)
    ]
    rows = [*answers(0, True), failed, *answers(1, True, True), *turns]
    assert pass_at_k(rows, asked(rows), "exact") == {"1": pytest.approx((0.5 + 1 + 0.5) / 3), "2": 1.0}


def test_accuracy_reads_a_tasks_own_reward_and_counts_what_failed_as_wrong() -> None:
    own, plain = Task("a", (), "1", difficulty=1.0, reward="f1"), Task("a", (), "2", difficulty=2.0)
    rows = [
        make_experience(1, taskset="a", task_id=own.task_id, reward_parts={"f1": 1.0}),
        make_experience(2, taskset="a", task_id=plain.task_id, reward_parts={"exact": 1.0}),
        make_experience(3, taskset="a", task_id=plain.task_id, reward_parts={}, unscored_reason="hung"),
    ]
    found = accuracy(rows, [own, plain], "exact")
    assert (found.overall, found.by_class) == (pytest.approx(2 / 3), {"a/1.0": 1.0, "a/2.0": 0.5})
    with pytest.raises(EngineError, match="all 1 evaluation rollouts failed, the first with: hung"):
        accuracy(rows[2:], [plain], "exact")
    with pytest.raises(EngineError, match="the buffer refused every row"):
        accuracy([], [plain], "exact")
