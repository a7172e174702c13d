"""Updates and draws against plain loops of the papers' formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rft_data.core.rows import Task
from rft_data.tasks.selectors import make_selector
from rft_data.tasks.selectors.calibration import Calibration
from rft_data.tasks.selectors.mixture import largest_remainder
from rft_data.tasks.selectors.rasch import learnability
from tests.rft_data.tasks.selectors.pool import make_tasks, outcome


def test_mopps_posterior_is_the_papers() -> None:
    [task] = make_tasks(1, 1)
    selector = make_selector("mopps", {"decay": 0.5}, [task], 0)
    a = b = 1.0
    predicted = []
    for passed in (3, 0, 8, 5):
        predicted.append(a / (a + b))
        selector.observe([outcome(task.key, (1.0,) * passed + (0.0,) * (8 - passed))])
        a, b = 0.5 * a + 0.5 + passed, 0.5 * b + 0.5 + 8 - passed
    squares = [(p * p * (8 - k) + (1 - p) ** 2 * k) for p, k in zip(predicted, (3, 0, 8, 5), strict=True)]
    assert selector.calibration.metrics()["brier"] == pytest.approx(sum(squares) / 32)


def test_bandit_values_are_td0_steps_on_the_mean_advantage() -> None:
    tasks = make_tasks(2, 3)
    selector = make_selector("bandit", {"learning_rate": 0.2, "start": 0.5}, tasks, 0)
    rewards = (1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0)
    selector.observe([outcome(tasks[0].key, rewards), outcome(tasks[3].key, (0.0,) * 8)])
    advantages = np.abs(np.array(rewards) - np.mean(rewards)) / np.std(rewards)
    metrics = selector.metrics()
    assert metrics["value/a/0.0"] == pytest.approx(0.5 + 0.2 * (advantages.mean() - 0.5))
    assert metrics["value/a/1.0"] == pytest.approx(0.5 - 0.2 * 0.5)


def test_bandit_draws_categories_by_their_softmax() -> None:
    tasks = make_tasks(3, 400)
    selector = make_selector("bandit", {"learning_rate": 1.0, "temperature": 0.5}, tasks, 0)
    for i, passed in enumerate((4, 1, 0)):
        selector.observe([outcome(tasks[400 * i].key, (1.0,) * passed + (0.0,) * (8 - passed))])
    q = [2 * math.sqrt(p * (1 - p)) for p in (0.5, 0.125, 0.0)]
    expected = np.exp(np.array(q) / 0.5) / np.exp(np.array(q) / 0.5).sum()
    level = {task.key: int(task.difficulty) for task in tasks}
    drawn = np.bincount([level[k] for _ in range(60) for k in selector.select(50)], minlength=3) / 3000
    assert drawn == pytest.approx(expected, abs=0.03)


def test_adaptive_target_moves_as_in_the_paper_and_picks_the_nearest() -> None:
    tasks = make_tasks(11, 20)
    args = {"step": 0.3, "sensitivity": 2.0, "groups_per_update": 4}
    selector = make_selector("adaptive_target", args, tasks, 0)
    target = 0.0
    level = {task.key: task.difficulty for task in tasks}
    for means in ((1.0, 1.0, 0.5, 1.0), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.25, 0.0)):
        selector.observe([outcome(task.key, (m,)) for task, m in zip(tasks, means, strict=False)])
        target = min(max(target + 10 * 0.3 * math.tanh(2.0 * (sum(means) / 4 - 0.5)), 0.0), 10.0)
        assert selector.metrics()["target_difficulty"] == pytest.approx(target)
        chosen = [level[key] for key in selector.select(30)]
        distances = sorted(abs(task.difficulty - target) for task in tasks)
        assert sorted(abs(d - target) for d in chosen) == pytest.approx(distances[:30])


def test_adaptive_target_draws_tasks_equally_near_at_random() -> None:
    tasks = make_tasks(2, 500)
    selector = make_selector("adaptive_target", {}, tasks, 0)
    seen = {key for _ in range(100) for key in selector.select(20)}
    assert len(seen) > 450  # 2,000 draws from the 500 easiest
    assert seen <= {task.key for task in tasks[:500]}


def test_interpolated_posterior_is_the_papers_where_nothing_is_clipped() -> None:
    tasks = make_tasks(4, 6)
    args = {"groups_per_update": 3, "pseudo_count": 16.0, "forgetting": 0.2, "blend": 0.3}
    selector = make_selector("interpolated", args, tasks, 0)
    weak = np.array([t.metadata["weak_pass_rate"] for t in tasks])
    gap = np.array([t.metadata["strong_pass_rate"] for t in tasks]) - weak
    a, b, c, m, left, r = np.ones(24), np.ones(24), None, 16.0, 0.8, 0.3
    rng = np.random.default_rng(0)
    for _ in range(6):
        seen = rng.choice(24, 3, replace=False)
        p = np.array([round(float(weak[i] + 0.5 * gap[i]) * 20) / 20 for i in seen])
        selector.observe([outcome(tasks[i].key, (rate,)) for i, rate in zip(seen, p, strict=True)])
        found = (p.mean() - weak[seen].mean()) / gap[seen].mean()
        c = found if c is None else 0.9 * c + 0.1 * found
        q = np.clip(weak + c * gap, 0, 1)
        q[seen] = p
        s, f = np.zeros(24), np.zeros(24)
        s[seen], f[seen] = m * p, m * (1 - p)
        a = left * a + 0.2 + (1 - r) * s + r * m * q
        b = left * b + 0.2 + (1 - r) * f + r * m * (1 - q)
    places = np.array(selector._roster.places([task.key for task in tasks]))
    ours = selector._shapes(places)
    assert ours[0] == pytest.approx(a, rel=1e-6)
    assert ours[1] == pytest.approx(b, rel=1e-6)
    assert [selector._predict(i) for i in places.tolist()] == pytest.approx(a / (a + b), rel=1e-6)


def test_tasks_on_which_the_references_are_alike_tell_no_position() -> None:
    rates = [(0.0, 2**-10), (0.25, 0.25), (0.0, 2**-10 + 2**-22), (0.5, 0.0), (0.0, 0.5)]
    tasks = [
        Task(
            "t", ({"role": "user", "content": str(i)},), metadata={"weak_pass_rate": w, "strong_pass_rate": s}
        )
        for i, (w, s) in enumerate(rates)
    ]
    selector = make_selector("interpolated", {"groups_per_update": 2}, tasks, 0)
    positions, weighted = [], 0.0
    for place, rate in [(0, 1.0), (1, 1.0), (2, 0.0), (3, 0.25), (1, 1.0), (4, 0.125)]:
        selector.observe([outcome(tasks[place].key, (rate,))] * 2)
        positions.append(selector._position)
        weighted = 0.8 * weighted + (positions[-1] or 0.0)
        assert selector._weighted == pytest.approx(weighted)
    assert positions == [None, None, 0.0, pytest.approx(0.05), pytest.approx(0.05), pytest.approx(0.07)]


@pytest.mark.slow
def test_learnability_draws_in_proportion_to_the_expected_variance() -> None:
    tasks = make_tasks(3, 100)
    selector = make_selector("learnability", {"decay": 1.0, "prior_weight": 4.0}, tasks, 0)
    for task in tasks:
        passed = (8, 4, 1)[int(task.difficulty)]
        selector.observe([outcome(task.key, (1.0,) * passed + (0.0,) * (8 - passed))])
    level = {task.key: int(task.difficulty) for task in tasks}
    drawn = np.bincount([level[k] for _ in range(1500) for k in selector.select(2)], minlength=3) / 3000
    rates = [(1 + 100 * k) / (2 + 100 * 8) for k in (8, 4, 1)]
    shapes = [(4 * m + k, 4 * (1 - m) + 8 - k) for m, k in zip(rates, (8, 4, 1), strict=True)]
    weights = np.array([a * b / ((a + b) * (a + b + 1)) for a, b in shapes])
    assert drawn == pytest.approx(weights / weights.sum(), abs=0.03)


@pytest.mark.parametrize("mean", [-4.0, -1.0, 0.0, 2.5])
@pytest.mark.parametrize("variance", [0.1, 1.0, 4.0])
def test_expected_learnability_is_near_its_integral(mean: float, variance: float) -> None:
    z = np.linspace(-9, 9, 20001)
    p = 1 / (1 + np.exp(-(mean + math.sqrt(variance) * z)))
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    exact = float((p * (1 - p) * density).sum() * (z[1] - z[0]))
    assert float(learnability(np.array(mean), variance)) == pytest.approx(exact, abs=0.015)


@pytest.mark.slow
def test_three_level_filter_tells_an_odd_task_from_its_category() -> None:
    tasks, rng = make_tasks(2, 60), np.random.default_rng(0)
    selector = make_selector("hierarchical", {}, tasks, 0)
    odd = tasks[0]
    for _ in range(6):
        for task in tasks:
            rate = 0.02 if task is odd else (0.9, 0.3)[int(task.difficulty)]
            selector.observe([outcome(task.key, (rng.random(8) < rate).astype(float))])
    places = dict(zip([t.key for t in tasks], selector._roster.places([t.key for t in tasks]), strict=True))
    assert selector._predict(places[odd.key]) < 0.2
    typical = [selector._predict(places[task.key]) for task in tasks[1:60]]
    assert np.mean(typical) == pytest.approx(0.9, abs=0.05)
    assert selector.metrics()["pass_rate/a/1.0"] == pytest.approx(0.3, abs=0.12)


@pytest.mark.slow
def test_hierarchical_predicts_better_than_the_last_mean_when_tasks_outnumber_visits() -> None:
    tasks, rng = make_tasks(4, 500), np.random.default_rng(0)
    selector = make_selector("hierarchical", {}, tasks, 0)
    offset = {task.key: 1.5 - task.difficulty + rng.normal() for task in tasks}
    for step in range(60):
        rates = {key: 1 / (1 + math.exp(-(b + step / 30))) for key, b in offset.items()}
        keys = selector.select(32)
        selector.observe([outcome(k, (rng.random(8) < rates[k]).astype(float)) for k in keys])
    found = selector.calibration.metrics()
    assert found["brier"] < found["brier_last_mean"]
    assert found["spearman"] > 0.1
    table = selector.calibration.table()
    assert sum(row["groups"] for row in table) == 60 * 32


def test_selected_task_rests_while_its_group_is_under_way() -> None:
    selector = make_selector("hierarchical", {"rest": 96}, make_tasks(4, 100), 0)
    under_way = [key for _ in range(6) for key in selector.select(16)]
    assert len(set(under_way)) == 96


def test_calibration_is_that_of_a_plain_loop() -> None:
    rng, calibration = np.random.default_rng(0), Calibration()
    ours, last, seen = [], [], []
    for _ in range(400):
        p, rewards = rng.random(), (rng.random(4) < rng.random()).astype(float)
        guess = None if rng.random() < 0.5 else float(rng.random())
        before = float(np.mean(seen)) if seen else 0.5
        calibration.record(p, guess, rewards.sum(), (rewards**2).sum(), 4)
        ours += [(p - r) ** 2 for r in rewards]
        last += [((before if guess is None else guess) - r) ** 2 for r in rewards]
        seen += rewards.tolist()
    found = calibration.metrics()
    assert found["brier"] == pytest.approx(np.mean(ours))
    assert found["brier_last_mean"] == pytest.approx(np.mean(last))


def test_spearman_shares_ranks_among_equal_values() -> None:
    calibration = Calibration()
    pairs = [(0.1, 0.0), (0.2, 0.5), (0.2, 0.5), (0.7, 0.5), (0.9, 1.0)]
    for predicted, mean in pairs:
        calibration.record(predicted, None, mean * 2, mean * mean * 2, 2)
    ranks = np.corrcoef([0, 1.5, 1.5, 3, 4], [0, 2, 2, 2, 4])[0, 1]
    assert calibration.metrics()["spearman"] == pytest.approx(ranks)


def test_largest_remainder_sums_exactly_and_stays_within_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        shares, total = rng.random(rng.integers(1, 9)) + 1e-3, int(rng.integers(0, 1000))
        quota = largest_remainder(shares, total)
        assert sum(quota) == total
        assert np.abs(np.array(quota) - shares / shares.sum() * total).max() < 1
