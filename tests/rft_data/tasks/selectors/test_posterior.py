"""Beta posteriors: what the arguments of `difficulty` and `mopps` do, against sums over the history."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from rft_data.core.rows import Task
from rft_data.tasks.selectors import make_selector
from tests.rft_data.tasks.selectors.pool import make_tasks, outcome

History = Sequence[tuple[int, int, int]]
"""(task, passed, failed) of every group, oldest first."""
HISTORY: History = [(0, 8, 0), (1, 6, 2), (0, 3, 5), (2, 1, 7), (3, 0, 8), (0, 0, 8), (1, 5, 3), (2, 4, 4)]
ONE_SIDED: History = [(0, 4000, 0), (2, 0, 4000), (2, 0, 4000), (0, 4000, 0)]
"""Category rates that would be outside [0.001, 0.999]."""


def shapes(tasks: Sequence[Task], history: History, decay: float, weight: float) -> list[tuple[float, float]]:
    """Beta parameters of each task: every group counts with decay^(groups of the task since)."""
    found = []
    for at, task in enumerate(tasks):
        kin = [(p, f) for i, p, f in history if tasks[i].difficulty == task.difficulty]
        own = [(p, f) for i, p, f in history if i == at]
        slow = decay ** (1 / 16)
        passed, failed = (slow ** len(kin) + _aged([group[s] for group in kin], slow) for s in (0, 1))
        rate = min(max(passed / (passed + failed), 0.001), 0.999)
        passes, fails = (_aged([group[s] for group in own], decay) for s in (0, 1))
        found.append((weight * rate + passes, weight * (1 - rate) + fails))
    return found


def _aged(counts: Sequence[float], decay: float) -> float:
    return math.fsum(count * decay**age for age, count in enumerate(reversed(counts)))


def learned(use: str, args: dict[str, object], tasks: Sequence[Task], history: History):
    selector = make_selector(use, args, tasks, 0)
    for task, passed, failed in history:
        selector.observe([outcome(tasks[task].key, (1.0,) * passed + (0.0,) * failed)])
    return selector


@pytest.mark.parametrize("use", ["difficulty", "learnability"])
@pytest.mark.parametrize("history", [HISTORY, ONE_SIDED], ids=["mixed", "one-sided"])
@pytest.mark.parametrize(("decay", "weight"), [(0.5, 4.0), (0.9, 10.0), (1.0, 1.0)])
def test_posterior_is_the_decayed_sum_of_a_task_and_its_category(
    use: str, history: History, decay: float, weight: float
) -> None:
    tasks = make_tasks(2, 2)
    selector = learned(use, {"decay": decay, "prior_weight": weight}, tasks, history)
    places = np.array(selector._roster.places([task.key for task in tasks]))
    wanted = np.array(shapes(tasks, history, decay, weight))
    assert np.transpose(selector._posterior.shapes(places)) == pytest.approx(wanted)
    means = wanted[:, 0] / wanted.sum(axis=1)
    assert [selector._predict(place) for place in places.tolist()] == pytest.approx(means)


@pytest.mark.parametrize("target", [0.23, 0.79])
@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_greedy_difficulty_takes_the_means_nearest_the_target_first(target: float, decay: float) -> None:
    tasks = make_tasks(1, 9)
    history = [(i, 8 - i, i) for i in (4, 0, 7, 2, 8, 5, 1, 6, 3)] * 2
    args = {"choice": "greedy", "target_pass_rate": target, "decay": decay}
    selector = learned("difficulty", args, tasks, history)
    means = [a / (a + b) for a, b in shapes(tasks, history, decay, 4.0)]
    nearest = sorted(range(9), key=lambda i: abs(means[i] - target))
    assert selector.select(9) == [tasks[i].key for i in nearest]
    assert selector.select(3) == [tasks[i].key for i in nearest[:3]]


def test_greedy_difficulty_draws_among_tasks_that_are_all_alike() -> None:
    selector = make_selector("difficulty", {"choice": "greedy"}, make_tasks(1, 50), 0)
    assert len({selector.select(1)[0] for _ in range(30)}) > 15


@pytest.mark.slow
@pytest.mark.parametrize("use", ["difficulty", "mopps"])
@pytest.mark.parametrize("target", [0.15, 0.5, 0.9])
def test_thompson_takes_a_task_as_often_as_its_draw_is_nearest_the_target(use: str, target: float) -> None:
    tasks = make_tasks(1, 2)
    history = [(0, 6, 2), (1, 1, 1), (0, 5, 3)]
    selector = learned(use, {"target_pass_rate": target, "decay": 1.0}, tasks, history)
    both = [(12.0, 6.0), (2.0, 2.0)] if use == "mopps" else shapes(tasks, history, 1.0, 4.0)
    taken = sum(selector.select(1) == [tasks[0].key] for _ in range(2000)) / 2000
    assert taken == pytest.approx(_nearer(*both, target), abs=0.045)  # four standard errors


def _nearer(first: tuple[float, float], second: tuple[float, float], target: float) -> float:
    """The chance that a draw from the first Beta is nearer the target than one from the second; on a grid."""
    x = (np.arange(20_000) + 0.5) / 20_000
    densities = [x ** (a - 1) * (1 - x) ** (b - 1) for a, b in (first, second)]
    one, other = (density / density.sum() for density in densities)
    far = np.abs(x - target)
    order = np.argsort(far)
    beyond = 1.0 - np.cumsum(other[order])
    return float((one[order] * beyond).sum())
