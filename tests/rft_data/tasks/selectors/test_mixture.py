"""Mixtures of tasksets and curricula of stages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rft_data.tasks.selectors import make_selector
from tests.rft_data.tasks.selectors.pool import make_tasks, outcome

SIZES = {"a": 70, "b": 20, "c": 10}


def pool(sizes=SIZES):
    return [task for name, n in sizes.items() for task in make_tasks(1, n, name)]


def test_mixture_is_exact_over_every_epoch_and_never_a_place_off() -> None:
    args = {"weights": {"a": 5.0, "b": 3.0, "c": 1.7}, "epoch": 97}
    selector = make_selector("mixture", args, pool(), 0)
    shares = np.array([5.0, 3.0, 1.7]) / 9.7
    for _ in range(4):
        names = [key.taskset for n in (30, 1, 50, 16) for key in selector.select(n)]
        counts = Counter(names)
        assert [counts["a"], counts["b"], counts["c"]] == [50, 30, 17]
        for i in range(1, 98):
            so_far = np.array([names[:i].count(name) for name in "abc"])
            assert np.abs(so_far - shares * i).max() < 1.01


@pytest.mark.parametrize("temperature", [1.0, 2.0, 1e9])
def test_mixture_temperature_evens_out_the_sizes(temperature: float) -> None:
    selector = make_selector("mixture", {"temperature": temperature, "epoch": 1000}, pool(), 0)
    counts = Counter(key.taskset for key in selector.select(1000))
    weights = np.array(list(SIZES.values())) ** (1 / temperature)
    assert [counts[name] for name in "abc"] == pytest.approx(weights / weights.sum() * 1000, abs=1)


def test_mixture_in_proportion_shows_every_task_once_per_epoch() -> None:
    selector = make_selector("mixture", {}, pool(), 0)
    for _ in range(3):
        assert len({key for _ in range(10) for key in selector.select(10)}) == 100


def test_taskset_without_tasks_in_play_gives_its_places_away() -> None:
    tasks = pool()
    selector = make_selector("mixture", {"weights": {"a": 1, "b": 1, "c": 1}}, tasks, 0)
    selector.select(7)
    selector.retire([task.key for task in tasks if task.taskset == "b"])
    assert {key.taskset for key in selector.select(300)} == {"a", "c"}
    selector.revive([task.key for task in tasks if task.taskset == "b"])
    selector.select(100)
    counts = Counter(key.taskset for key in selector.select(300))
    assert counts["b"] == pytest.approx(100, abs=2)


def test_taskset_that_is_added_joins_with_its_share() -> None:
    selector = make_selector("mixture", {}, pool({"a": 50}), 0)
    selector.select(50)
    selector.add(make_tasks(1, 50, "d"))
    assert Counter(key.taskset for key in selector.select(100)) == {"a": 50, "d": 50}


def test_results_reach_the_selector_of_their_taskset_only() -> None:
    tasks = pool()
    selector = make_selector("mixture", {"inner": {"use": "difficulty"}}, tasks, 0)
    selector.observe([outcome(task.key, (1.0,) * 8) for task in tasks if task.taskset == "b"])
    metrics = selector.metrics()
    assert (metrics["a/visited"], metrics["b/visited"], metrics["c/visited"]) == (0.0, 1.0, 0.0)
    assert metrics["pass_rate/b/0.0"] > 0.9


def test_stage_ends_after_its_groups_or_at_its_pass_rate() -> None:
    stages = [
        {"use": "sequential", "until": {"groups": 10}},
        {"use": "shuffle", "until": {"pass_rate": 0.8}},
        {"use": "pools"},
    ]
    tasks = make_tasks(2, 40)
    selector = make_selector("staged", {"stages": stages}, tasks, 0)
    keys = selector.select(10)
    assert keys == [task.key for task in tasks[:10]]
    selector.observe([outcome(key, (0.0,)) for key in keys[:9]])
    selector.observe([outcome(keys[9], (0.0,), "failed"), outcome(keys[9], (None,))])
    assert selector.metrics()["stage"] == 0.0
    selector.observe([outcome(keys[9], (0.0,))])
    assert selector.metrics()["stage"] == 1.0
    selector.observe([outcome(tasks[0].key, (1.0,))] * 63)
    assert selector.metrics()["stage"] == 1.0
    selector.observe([outcome(tasks[0].key, (1.0,))])
    assert selector.metrics()["stage"] == 2.0
    assert selector.metrics()["visited"] == 10 / 80  # the last stage heard the groups of those before it


def test_a_stages_pass_rate_is_the_running_mean_of_rewards_clipped_to_one() -> None:
    stages = [{"use": "shuffle", "until": {"pass_rate": 0.99}}, {"use": "shuffle"}]
    tasks = make_tasks(1, 4)
    selector = make_selector("staged", {"stages": stages}, tasks, 0)
    means = [0.5, 0.25, *([1.0] * 61), 0.0, 0.5]
    played = [(2.0, -1.0, 0.5), (-3.0, 0.5), *([(1.0, 5.0)] * 61), (0.0, -0.5), (0.5,)]
    expected = 0.0
    for number, (mean, rewards) in enumerate(zip(means, played, strict=True), 1):
        selector.observe([outcome(tasks[0].key, rewards)])
        expected += (mean - expected) / min(number, 64)
        assert selector.metrics()["stage_pass_rate"] == pytest.approx(expected, abs=1e-12)
    assert selector.metrics()["stage"] == 0.0


def test_a_stage_ends_at_its_pass_rate_and_the_next_begins_without_one() -> None:
    stages = [{"use": "shuffle", "until": {"pass_rate": 0.5}}, {"use": "shuffle"}]
    tasks = make_tasks(1, 4)
    selector = make_selector("staged", {"stages": stages}, tasks, 0)
    selector.observe([outcome(tasks[0].key, (1.0, 0.0))] * 64)
    assert selector.state_dict()["at"] == [1, 0, 0.0]
    selector.observe([outcome(tasks[0].key, (1.0,))])
    assert selector.state_dict()["at"] == [1, 1, 1.0]
