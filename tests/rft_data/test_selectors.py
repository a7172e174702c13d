import json

import numpy as np
import pytest

from rft_data.errors import RecipeError
from rft_data.rows import GroupResult, Task, TaskKey, Ticket
from rft_data.selectors import Difficulty, Shuffle


def make_tasks(levels: int = 4, each: int = 50) -> list[Task]:
    return [
        Task("a", ({"role": "user", "content": f"{level}-{i}"},), "0", difficulty=float(level))
        for level in range(levels)
        for i in range(each)
    ]


def outcome(key: TaskKey, rewards: tuple[float | None, ...], kind: str = "arrived") -> GroupResult:
    return GroupResult(Ticket("g", 0, 0), key, rewards, kind, 0)


def play(
    selector, tasks: list[Task], rates: dict[float, float], rounds: int, rng: np.random.Generator
) -> list[float]:
    """Difficulties chosen in the last third of `rounds` rounds of 16 groups of 8."""
    level = {task.key: task.difficulty for task in tasks}
    chosen: list[float] = []
    for round_ in range(rounds):
        keys = selector.select(16)
        selector.observe([outcome(k, tuple((rng.random(8) < rates[level[k]]).astype(float))) for k in keys])
        if round_ >= rounds * 2 // 3:
            chosen += [level[k] for k in keys]
    return chosen


def test_difficulty_finds_the_tasks_near_the_target() -> None:
    tasks = make_tasks()
    rates = {0.0: 0.99, 1.0: 0.55, 2.0: 0.05, 3.0: 0.0}
    chosen = play(Difficulty(tasks, seed=0), tasks, rates, 40, np.random.default_rng(1))
    assert chosen.count(1.0) / len(chosen) > 0.75


def test_difficulty_follows_a_policy_that_improves() -> None:
    tasks, rng = make_tasks(), np.random.default_rng(1)
    selector = Difficulty(tasks, seed=0)
    play(selector, tasks, {0.0: 0.5, 1.0: 0.02, 2.0: 0.0, 3.0: 0.0}, 30, rng)
    chosen = play(selector, tasks, {0.0: 1.0, 1.0: 0.98, 2.0: 0.5, 3.0: 0.0}, 60, rng)
    assert chosen.count(2.0) / len(chosen) > 0.6


def test_difficulty_ignores_what_is_not_an_outcome() -> None:
    tasks = make_tasks()
    selector = Difficulty(tasks, seed=0)
    before = json.dumps(selector.state_dict())
    selector.observe(
        [
            outcome(tasks[0].key, (1.0,) * 8, "failed"),
            outcome(tasks[0].key, (1.0,) * 8, "cancelled"),
            outcome(tasks[0].key, (None,) * 8),
            outcome(TaskKey("other", "x"), (1.0,)),
        ]
    )
    assert json.dumps(selector.state_dict()) == before


def test_difficulty_counts_partial_credit_and_skips_unscored_members() -> None:
    tasks = make_tasks(1, 1)
    selector = Difficulty(tasks, seed=0)
    selector.observe([outcome(tasks[0].key, (0.25, None, 1.0))])
    assert selector.state_dict()["counts"][f"a/{tasks[0].task_id}"] == pytest.approx([1.25, 0.75])


@pytest.mark.parametrize("make", [lambda t: Difficulty(t, seed=3), lambda t: Shuffle(t, seed=3)])
def test_selector_continues_exactly_from_its_state(make) -> None:
    tasks, rng = make_tasks(), np.random.default_rng(0)
    straight = make(tasks)
    rates = {0.0: 0.9, 1.0: 0.6, 2.0: 0.2, 3.0: 0.0}
    play(straight, tasks, rates, 10, rng)
    state = json.loads(json.dumps(straight.state_dict()))
    resumed = make(list(reversed(tasks)))
    resumed.load_state_dict(state)
    for _ in range(60):
        keys = straight.select(17)
        assert keys == resumed.select(17)
        results = [outcome(k, tuple((rng.random(8) < 0.5).astype(float))) for k in keys]
        straight.observe(results)
        resumed.observe(results)


def test_shuffle_shows_every_task_once_per_epoch() -> None:
    tasks = make_tasks(1, 10)
    selector = Shuffle(tasks, seed=0)
    seen = [selector.select(3) for _ in range(20)]
    flat = [key for part in seen for key in part]
    epochs = [flat[i : i + 10] for i in range(0, 60, 10)]
    assert all(len(set(epoch)) == 10 for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", [Difficulty, Shuffle])
def test_selector_without_tasks_is_refused(kind) -> None:
    with pytest.raises(RecipeError, match="has no task to choose from"):
        kind([], seed=0)


def test_selector_repeats_only_when_there_are_too_few_tasks() -> None:
    tasks = make_tasks(1, 5)
    for selector in (Difficulty(tasks, seed=0), Shuffle(tasks, seed=0)):
        assert len(set(selector.select(5))) == 5
        assert len(selector.select(7)) == 7
