"""What every selector keeps to, and what those do that learn from groups."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rft_data.core.errors import RecipeError, StalledError
from rft_data.core.rows import TaskKey
from rft_data.tasks.selectors import Difficulty, Shuffle, make_selector
from tests.rft_data.tasks.selectors.pool import ARGUMENTS, make_tasks, outcome, play

LEARNING = [n for n in ARGUMENTS if n not in ("easy_to_hard", "random", "sequential", "shuffle")]


def made(name: str, tasks, seed: int = 0):
    use, args = ARGUMENTS[name]
    return make_selector(use, args, tasks, seed)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_selector_repeats_only_when_there_are_too_few_tasks(name: str) -> None:
    selector = made(name, make_tasks(2, 5))
    assert len(set(selector.select(10))) == 10
    assert len(selector.select(23)) == 23
    assert selector.select(0) == []


@pytest.mark.parametrize("name", ARGUMENTS)
def test_selector_with_one_task_selects_it(name: str) -> None:
    [task] = make_tasks(1, 1)
    selector = made(name, [task])
    for _ in range(3):
        assert selector.select(2) == [task.key, task.key]
        selector.observe([outcome(task.key, (1.0,))])


@pytest.mark.parametrize("name", ARGUMENTS)
def test_selector_never_selects_a_retired_task_until_it_is_revived(name: str) -> None:
    tasks = make_tasks(4, 25)
    selector = made(name, tasks)
    out = {task.key for task in tasks[::3]}
    selector.retire(out)
    for _ in range(20):
        keys = selector.select(16)
        assert out.isdisjoint(keys)
        selector.observe([outcome(key, (1.0, 0.0)) for key in keys])
    assert selector.in_play == len(tasks) - len(out)
    selector.retire([task.key for task in tasks])
    selector.revive(out)
    assert set(selector.select(len(out))) == out


@pytest.mark.parametrize("name", ARGUMENTS)
def test_selector_selects_tasks_that_were_added(name: str) -> None:
    tasks = make_tasks(2, 20)
    selector = made(name, tasks)
    selector.select(30)
    more = make_tasks(2, 10, first=100)
    selector.add([*tasks, *more])
    assert selector.in_play == 60
    assert set(selector.select(240)) >= {task.key for task in more}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_selector_whose_tasks_are_all_retired_says_so(name: str) -> None:
    tasks = make_tasks(1, 5)
    selector = made(name, tasks)
    selector.retire([*[task.key for task in tasks], TaskKey("other", "x")])
    with pytest.raises(StalledError, match=r"every task is retired|all 5 tasks are retired"):
        selector.select(1)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_selector_without_tasks_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="has no task to choose from"):
        made(name, [])


@pytest.mark.parametrize("name", ARGUMENTS)
def test_selector_ignores_what_is_not_an_outcome(name: str) -> None:
    tasks = make_tasks()
    selector = made(name, tasks)
    selector.observe([outcome(tasks[1].key, (0.5,), version=5)])
    before = json.dumps(selector.state_dict())
    selector.observe(
        [
            outcome(tasks[0].key, (1.0,) * 8, "failed"),
            outcome(tasks[0].key, (1.0,) * 8, "cancelled"),
            outcome(tasks[0].key, (None,) * 8),
            outcome(tasks[0].key, (float("nan"), float("inf"))),
            outcome(tasks[0].key, ()),
        ]
    )
    assert json.dumps(selector.state_dict()) == before


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name != "staged"])
def test_selector_ignores_tasks_it_does_not_have(name: str) -> None:
    selector = made(name, make_tasks())
    before = json.dumps(selector.state_dict())
    others = [TaskKey("other", "x"), TaskKey("a", "f" * 32), TaskKey("a", "")]
    selector.observe([outcome(key, (1.0,)) for key in others])
    selector.retire(others)
    assert json.dumps(selector.state_dict()) == before


def test_group_of_older_weights_than_the_last_of_its_task_teaches_nothing() -> None:
    tasks = make_tasks()
    selector = Difficulty(tasks, seed=0)
    selector.observe([outcome(tasks[0].key, (1.0,), version=5)])
    before = json.dumps(selector.state_dict())
    selector.observe([outcome(tasks[0].key, (0.0,) * 8, version=4)])
    assert json.dumps(selector.state_dict()) == before
    selector.observe([outcome(tasks[0].key, (0.0,) * 8, version=5)])
    assert json.dumps(selector.state_dict()) != before


@pytest.mark.parametrize("name", LEARNING)
def test_rewards_outside_the_unit_interval_count_as_its_ends(name: str) -> None:
    tasks = make_tasks(1, 40)
    inside, outside = made(name, tasks), made(name, tasks)
    inside.observe([outcome(task.key, (1.0, 0.0, 0.25)) for task in tasks])
    outside.observe([outcome(task.key, (3.0, -1.0, 0.25)) for task in tasks])
    assert [inside.select(9) for _ in range(5)] == [outside.select(9) for _ in range(5)]
    clipped = [v for k, v in outside.metrics().items() if k.endswith("clipped_rewards")]
    assert clipped in ([80.0], [])  # the first stage of `staged` learns nothing and counts nothing


@pytest.mark.parametrize("name", LEARNING)
def test_what_is_learned_does_not_depend_on_how_results_are_batched(name: str) -> None:
    tasks, rng = make_tasks(), np.random.default_rng(0)
    together, apart = made(name, tasks), made(name, tasks)
    results = [outcome(task.key, rng.random(4).round(1)) for task in [*tasks[::3], *tasks[::5]]]
    together.observe(results)
    for result in results:
        apart.observe([result])
    assert json.dumps(together.state_dict()) == json.dumps(apart.state_dict())


@pytest.mark.parametrize("name", ["difficulty", "difficulty, greedy", "hierarchical", "mopps"])
def test_selector_finds_the_tasks_near_the_target(name: str) -> None:
    tasks = make_tasks()
    rates = {0.0: 0.99, 1.0: 0.55, 2.0: 0.05, 3.0: 0.0}
    chosen = play(made(name, tasks), tasks, rates, 40, np.random.default_rng(1))
    assert chosen.count(1.0) / len(chosen) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["difficulty", "hierarchical"])
def test_selector_follows_a_policy_that_improves(name: str) -> None:
    tasks, rng = make_tasks(), np.random.default_rng(1)
    selector = made(name, tasks)
    play(selector, tasks, {0.0: 0.5, 1.0: 0.02, 2.0: 0.0, 3.0: 0.0}, 30, rng)
    chosen = play(selector, tasks, {0.0: 1.0, 1.0: 0.98, 2.0: 0.5, 3.0: 0.0}, 60, rng)
    assert chosen.count(2.0) / len(chosen) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["learnability", "bandit", "pools", "interpolated"])
def test_selector_prefers_the_tasks_that_teach(name: str) -> None:
    tasks = make_tasks()
    rates = {0.0: 1.0, 1.0: 0.5, 2.0: 0.0, 3.0: 0.0}
    chosen = play(made(name, tasks), tasks, rates, 60, np.random.default_rng(1))
    assert chosen.count(1.0) / len(chosen) > 0.4  # a quarter of the tasks


def test_difficulty_counts_partial_credit_and_skips_unscored_members() -> None:
    tasks = make_tasks(1, 1)
    selector = Difficulty(tasks, seed=0, prior_weight=4.0)
    selector.observe([outcome(tasks[0].key, (0.25, None, 1.0))])
    slower = 0.8 ** (1 / 16)
    of_all = (slower + 1.25) / (2 * slower + 2)  # its category began at (1, 1)
    again = selector.calibration.metrics()["brier"]
    assert again == pytest.approx(((0.25 - 0.5) ** 2 + 0.5**2) / 2)
    selector.observe([outcome(tasks[0].key, (0.0,))])
    predicted = (4 * of_all + 1.25) / (4 + 2)
    assert selector.calibration.metrics()["brier"] == pytest.approx((2 * again + predicted**2) / 3)


def test_shuffle_shows_every_task_once_per_epoch() -> None:
    tasks = make_tasks(1, 10)
    selector = Shuffle(tasks, seed=0)
    seen = [selector.select(3) for _ in range(20)]
    flat = [key for part in seen for key in part]
    epochs = [flat[i : i + 10] for i in range(0, 60, 10)]
    assert all(len(set(epoch)) == 10 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_added_tasks_are_the_last_of_their_epoch() -> None:
    selector = Shuffle(make_tasks(1, 10), seed=0)
    selector.select(4)
    more = make_tasks(1, 3, first=50)
    selector.add(more)
    rest = selector.select(9)
    assert set(rest[6:]) == {task.key for task in more}
    assert len(set(selector.select(13))) == 13


def test_sequential_keeps_the_order_of_the_source() -> None:
    tasks = make_tasks(3, 5)[::-1]
    selector = make_selector("sequential", {}, tasks, 0)
    more = make_tasks(1, 2, first=70)
    selector.add(more)
    assert selector.select(17) == [task.key for task in [*tasks, *more]]


def test_task_given_twice_is_selected_once_per_epoch() -> None:
    tasks = make_tasks(1, 4)
    selector = Shuffle([*tasks, *tasks], seed=0)
    assert selector.in_play == 4
    assert len(set(selector.select(4))) == 4


def test_same_question_in_two_tasksets_is_two_tasks() -> None:
    both = [*make_tasks(1, 6, "a"), *make_tasks(1, 6, "b")]
    assert both[0].task_id == both[6].task_id
    selector = make_selector("mopps", {}, both, 0)
    selector.observe([outcome(task.key, (1.0,) * 8) for task in both[:6]])
    selector.retire([task.key for task in both[6:]])
    assert {key.taskset for key in selector.select(6)} == {"a"}


def test_easy_to_hard_opens_up_linearly() -> None:
    tasks = make_tasks(10, 10)
    selector = make_selector("easy_to_hard", {"pace": 200, "start": 0.1}, tasks, 0)
    level = {task.key: task.difficulty for task in tasks}
    highest = [max(level[key] for key in selector.select(5)) for _ in range(60)]
    assert highest[0] == 0.0
    assert all(h <= 0.1 * 10 + 9 * min(1.0, 5 * i / 200) for i, h in enumerate(highest))
    assert max(highest[40:]) == 9.0


def test_easy_to_hard_needs_a_difficulty_for_every_task() -> None:
    tasks = [*make_tasks(1, 2), make_tasks(1, 3)[-1]]
    object.__setattr__(tasks[-1], "difficulty", None)
    with pytest.raises(RecipeError, match=r"has no difficulty \(1 of 3 have none\)"):
        make_selector("easy_to_hard", {}, tasks, 0)


def test_interpolated_needs_both_reference_pass_rates() -> None:
    with pytest.raises(RecipeError, match="has None in its metadata under 'weak'"):
        make_selector("interpolated", {"weak": "weak"}, make_tasks(1, 2), 0)


def test_embedded_categories_need_vectors_of_one_length() -> None:
    with pytest.raises(RecipeError, match="a vector of one length"):
        make_selector("hierarchical", {"embedding": "no such field"}, make_tasks(1, 2), 0)
