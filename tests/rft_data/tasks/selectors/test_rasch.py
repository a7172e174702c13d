"""`RaschFilter` against the same model computed another way, and the rules by which `hierarchical` chooses.

The reference keeps joint precision matrices, differentiates the log likelihood numerically, and adds drift
to every level at every group; the filter has closed forms, and adds drift when it looks.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from rft_data.tasks.selectors import hierarchical, make_selector
from rft_data.tasks.selectors.categories import Categories
from rft_data.tasks.selectors.columns import Columns
from rft_data.tasks.selectors.rasch import OFFSETS, RaschFilter
from tests.rft_data.tasks.selectors.pool import make_tasks, outcome

GRID = np.array([-4.0, -2.5, -1.2, 0.0, 1.2, 2.5, 4.0])
PRIOR = np.array([0.03, 0.08, 0.21, 0.26, 0.21, 0.08, 0.03, 0.10])
"""Of the offsets on the grid, and of an unsolvable task."""
LUCK = 0.04
CODES = np.repeat([0, 1, 2], [10, 8, 6])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


class Reference:
    """Ability and levels as one vector of independent Gaussians: mean and variance, ability first."""

    def __init__(self, drift: float) -> None:
        self.drift = drift
        self.mean, self.variance = np.zeros(4), np.full(4, 2.25)
        self.prior, self.visits, self.groups = PRIOR.copy(), 0, 0
        self.weights: dict[int, tuple[np.ndarray, int]] = {}
        self.bounded = self.floored = 0

    def level(self, code: int) -> tuple[float, float]:
        at = [0, 1 + code]
        return float(self.mean[at].sum()), float(self.variance[at].sum())

    def rates(self, code: int, shift: float = 0.0, far: float = 8.0) -> np.ndarray:
        """E[sigmoid(x)] for x ~ N(level + offset, variance), by MacKay's approximation."""
        mean, variance = self.level(code)
        by_offset = np.clip(mean, -far, far) + GRID + shift
        return np.append(sigmoid(by_offset / math.sqrt(1 + math.pi * variance / 8)), LUCK)

    def known(self, task: int, least: float) -> np.ndarray:
        """Weights of a task, faded if by more than `least`."""
        weights, at = self.weights.get(task, (self.prior, self.groups))
        faded = min(1e-5 * (self.groups - at), 0.5)
        return weights if faded <= least else (1 - faded) * weights + faded * self.prior

    def predict(self, task: int) -> float:
        return float(self.known(task, 0.01) @ self.rates(CODES[task]))

    def learnability(self, task: int, weights: np.ndarray) -> float:
        """E[p(1 - p)] is the slope of E[p] by the mean."""
        above, below = (self.rates(CODES[task], shift, np.inf) for shift in (1e-5, -1e-5))
        return float(weights @ (above - below) / 2e-5)

    def learn(self, task: int, passes: float, n: int) -> None:
        code = CODES[task]
        before, rates, at = self.known(task, 0.01), self.rates(code), [0, 1 + code]

        def log_likelihood(by: float) -> float:
            """Of the group, if the logits of a solvable task were higher by this much."""
            moved = np.append(sigmoid(np.log(rates[:-1] / (1 - rates[:-1])) + by), LUCK)
            return float(np.logaddexp.reduce(weights + _log_binomial(moved, passes, n)))

        with np.errstate(divide="ignore"):  # a weight may have become 0
            weights = np.log(before)
        after = np.exp(weights + _log_binomial(rates, passes, n) - log_likelihood(0.0))
        if task not in self.weights and self.variance[at].sum() < 0.5:
            self.visits += 1
            self.prior = self.prior + (after - self.prior) / (100 + self.visits)
        self.groups += 1
        self.weights[task] = after, self.groups
        slope, bend = _derivatives(log_likelihood)
        least = 0.25 * n * float(after[:-1] @ (rates * (1 - rates))[:-1])
        self.floored += -bend < least
        self._newton(at, slope, max(-bend, least))

    def _newton(self, at: list[int], slope: float, bend: float) -> None:
        covariance = np.linalg.inv(np.diag(1 / self.variance[at]) + bend * np.ones((2, 2)))
        move = covariance @ (slope, slope)
        if abs(move.sum()) > 1.5:
            self.bounded += 1
            move *= 1.5 / abs(move.sum())
        self.mean[at] += move
        self.variance[at] = np.diag(covariance)
        drifting = np.arange(4) != at[1]  # the level that just moved drifts from the next group on
        self.variance[drifting] = np.minimum(self.variance[drifting] + self.drift, 2.25)


def _log_binomial(rates: np.ndarray, passes: float, n: int) -> np.ndarray:
    return passes * np.log(rates) + (n - passes) * np.log1p(-rates)


def _derivatives(function) -> tuple[float, float]:
    """First and second derivative at 0, by differences of fourth order."""
    far, near, here, right, farther = (function(by) for by in (-4e-3, -2e-3, 0.0, 2e-3, 4e-3))
    first = (far - 8 * near + 8 * right - farther) / 24e-3
    return first, (-far + 16 * near - 30 * here + 16 * right - farther) / 48e-6


def both(drift: float) -> tuple[RaschFilter, Reference]:
    found = RaschFilter(drift=drift)
    found.fit(Categories(["a", "b", "c"], CODES), Columns(OFFSETS, len(CODES)))
    return found, Reference(drift)


def compare(found: RaschFilter, wanted: Reference, close: float = 2e-5) -> None:
    """Levels, the prior, and what is expected of every task."""
    mean, variance = found.levels()
    levels = np.array([wanted.level(code) for code in range(3)])
    assert mean == pytest.approx(levels[:, 0], rel=close, abs=close)
    assert variance == pytest.approx(levels[:, 1], rel=close)
    assert found.metrics()["unsolvable"] == pytest.approx(wanted.prior[-1], rel=close)
    for code, name in enumerate("abc"):
        expected = float(wanted.prior @ wanted.rates(code))
        assert found.metrics()[f"pass_rate/{name}"] == pytest.approx(expected, rel=close)
    first = [int(np.argmax(code == CODES)) for code in range(3)]
    fresh = [wanted.learnability(task, wanted.prior) for task in first]
    assert found.fresh(mean, variance) == pytest.approx(fresh, rel=close)
    predicted = [wanted.predict(task) for task in range(len(CODES))]
    assert [found.predict(task) for task in range(len(CODES))] == pytest.approx(predicted, rel=close)
    visited = sorted(wanted.weights)
    values = [wanted.learnability(task, wanted.known(task, 0.0)) for task in visited]
    assert found.values(np.array(visited, np.int64)) == pytest.approx(values, rel=close)


@pytest.mark.slow
@pytest.mark.parametrize(("drift", "learns_prior"), [(0.0005, True), (0.01, True), (3.0, False)])
def test_filter_is_the_reference(drift: float, learns_prior: bool) -> None:
    found, wanted = both(drift)
    rng = np.random.default_rng(3)
    skill = np.where(CODES == 0, 0.9, np.where(CODES == 1, 0.4, 0.1))
    skill[[0, 12, 20]] = 0.0, 1.0, 0.95  # unlike their categories
    for group in range(160):
        task = int(rng.integers(len(CODES)))
        n = int(rng.choice([1, 4, 8, 64]))
        passes = float(rng.binomial(n, skill[task]))
        if 0 < passes < n and group % 4 == 0:
            passes -= 0.25  # partial credit
        found.learn(task, passes, n)
        wanted.learn(task, passes, n)
        if group % 3 == 0:
            compare(found, wanted)
    assert bool(wanted.visits) == learns_prior
    assert wanted.bounded
    assert wanted.floored


@pytest.mark.parametrize("later", [500, 5_000, 30_000, 200_000])
def test_what_is_known_of_a_task_fades_with_the_groups_since(later: int) -> None:
    found, wanted = both(drift=1e-6)
    for task, passes in ((0, 8), (10, 0), (10, 1), (20, 8), (0, 8)):
        found.learn(task, passes, 8)
        wanted.learn(task, passes, 8)
    found.predict(0)
    state = found.state_dict()
    found.load_state_dict({**state, "groups": state["groups"] + later})
    wanted.groups += later
    wanted.variance[1:] = np.minimum(wanted.variance[1:] + 1e-6 * later, 2.25)
    compare(found, wanted, close=1e-3 if later < 30_000 else 1e-5)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_level_counts_as_at_most_eight_logits_where_rates_are_computed(sign: int) -> None:
    found, wanted = both(drift=0.0005)
    assert found.predict(0) == pytest.approx(wanted.predict(0))
    found.load_state_dict({**found.state_dict(), "ability": [sign * 7.0, 0.3]})
    found.load_state_dict({**found.state_dict(), "levels": {"a": [sign * 3.0, 0.2, 0.0]}})
    wanted.mean[:2], wanted.variance[:2] = sign * np.array([7.0, 3.0]), (0.3, 0.2)
    assert found.predict(0) == pytest.approx(wanted.predict(0))


def test_group_so_large_that_every_likelihood_underflows_teaches_nothing() -> None:
    found, _ = both(drift=0.0005)
    found.learn(0, 4, 8)
    before = found.state_dict(), found.predict(0)
    found.learn(0, 2000, 4000)
    assert (found.state_dict(), found.predict(0)) == before


def selector_after(tasks, passed: dict[int, int], **args: object):
    """`hierarchical` after groups of 8: passes by index of the task."""
    selector = make_selector("hierarchical", args, tasks, 0)
    for _ in range(4):
        selector.observe([outcome(tasks[i].key, (1.0,) * p + (0.0,) * (8 - p)) for i, p in passed.items()])
    return selector


@pytest.mark.parametrize(("tasks", "rest", "apart"), [(40, 7, 8), (40, 1, 2), (12, 64, 4), (3, 1, 1)])
def test_selected_task_rests_for_the_next_places_and_at_most_a_quarter(
    tasks: int, rest: int, apart: int
) -> None:
    pool = make_tasks(1, tasks)
    selector = selector_after(pool, {0: 4, **dict.fromkeys(range(1, tasks), 0)}, revisits=1.0, rest=rest)
    chosen = [selector.select(1)[0] == pool[0].key for _ in range(5 * apart)]
    assert [place for place, best in enumerate(chosen) if best] == [k * apart for k in range(5)]


def test_selected_task_goes_on_resting_when_tasks_are_added_and_over_a_restart() -> None:
    pool = make_tasks(1, 40)
    args = {"revisits": 1.0, "rest": 7}
    selector = selector_after(pool, {0: 4, **dict.fromkeys(range(1, 40), 0)}, **args)
    assert selector.select(1) == [pool[0].key]
    more = make_tasks(1, 1, first=100)
    selector.add(more)
    again = make_selector("hierarchical", args, pool, 0)
    again.add(more)
    again.load_state_dict(selector.state_dict())
    for one in (selector, again):
        assert [one.select(1)[0] == pool[0].key for _ in range(8)] == [False] * 7 + [True]


def test_drift_of_the_recipe_is_the_drift_of_the_levels() -> None:
    tasks = make_tasks(2, 4)
    narrow, wide = (
        selector_after(tasks, dict.fromkeys(range(8), 4), drift=drift)._filter.levels()[1]
        for drift in (0.001, 0.02)
    )
    assert (wide > narrow + 0.02).all()


def test_of_very_many_visited_tasks_a_random_part_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchical, "_SCORED", 30)
    selector = selector_after(make_tasks(1, 100), dict.fromkeys(range(90), 4))
    parts = [selector._visited() for _ in range(600)]
    assert {len(set(part.tolist())) for part in parts} == {30}
    counts = np.bincount(np.concatenate(parts), minlength=100)
    visited = selector._columns["visits"] > 0
    assert counts[~visited].sum() == 0
    assert counts[visited] == pytest.approx(np.full(90, 200), abs=60)  # five standard errors


@pytest.mark.parametrize("revisits", [0.0, 0.25, 1.0])
def test_at_most_the_share_of_revisits_goes_to_visited_tasks(revisits: float) -> None:
    tasks = make_tasks(1, 200)
    good, poor = dict.fromkeys(range(10), 4), dict.fromkeys(range(10, 20), 8)
    selector = selector_after(tasks, {**good, **poor}, revisits=revisits)
    chosen = selector.select(20)
    index = {task.key: i for i, task in enumerate(tasks)}
    visited = [index[key] for key in chosen if index[key] < 20]
    assert len(visited) == min(int(20 * revisits), 10)
    assert all(i < 10 for i in visited)  # the others teach less than an unvisited task
    assert len(set(chosen)) == 20


def test_category_gives_its_unvisited_tasks_first_and_then_the_visited_that_teach_most() -> None:
    tasks = make_tasks(1, 8)
    selector = selector_after(tasks, {0: 7, 1: 4, 2: 8, 3: 0, 4: 6}, revisits=0.0, rest=1)
    chosen = selector.select(6)
    assert set(chosen[:3]) == {task.key for task in tasks[5:]}
    assert chosen[3:] == [tasks[i].key for i in (1, 4, 0)]


def test_tasks_that_rest_come_again_only_when_no_other_is_left() -> None:
    tasks = make_tasks(1, 8)
    selector = selector_after(tasks, dict.fromkeys(range(8), 4))
    first, second = selector.select(6), selector.select(6)
    assert set(second) == {task.key for task in tasks} - set(first[-2:])
    assert len(set(selector.select(7))) == 7


@pytest.mark.slow
def test_categories_get_places_as_often_as_their_drawn_level_teaches_most() -> None:
    tasks = make_tasks(2, 2500)
    passed = {**dict.fromkeys(range(3), 6), **dict.fromkeys(range(2500, 2502), 2)}
    selector = selector_after(tasks, passed, revisits=0.0, rest=1)
    mean, variance = selector._filter.levels()
    state = selector._filter.state_dict()
    prior = np.array(state["prior"][1:])
    z = np.linspace(-6, 6, 1201)
    weight = np.exp(-z * z / 2)
    weight /= weight.sum()
    taught = []
    for m, v in zip(mean, variance, strict=True):
        rates = sigmoid((m + math.sqrt(v) * z)[:, None] + GRID)
        taught.append((rates * (1 - rates)) @ prior[:-1])
    easy, hard = (taught[list(state["levels"]).index(name)] for name in ("a/0.0", "a/1.0"))
    wins = float(weight @ (easy[:, None] > hard[None, :]) @ weight)
    chosen = selector.select(2500)
    first = {task.key for task in tasks[:2500]}
    share = sum(key in first for key in chosen) / 2500
    assert 0.1 < wins < 0.9
    assert share == pytest.approx(wins, abs=0.04)  # four standard errors
