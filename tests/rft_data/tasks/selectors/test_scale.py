"""With very many tasks: the same law as over all of them, from a part of them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rft_data.core.errors import MissingExtraError
from rft_data.core.rows import Task, TaskKey
from rft_data.tasks.selectors import make_selector
from rft_data.tasks.selectors.categories import by_difficulty, by_embedding
from rft_data.tasks.selectors.drawing import best, sample
from rft_data.tasks.selectors.roster import Roster
from tests.rft_data.tasks.selectors.pool import make_task, make_tasks, outcome

RATES = (0.9, 0.55, 0.1)


def kinds_of(selector, places) -> Counter:
    """Selected tasks by (difficulty, visited or not)."""
    visits, tasks = selector._columns["visits"], selector._roster.tasks
    return Counter((tasks[place].difficulty, bool(visits[place])) for place in places)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["difficulty", "mopps"])
def test_thompson_draws_from_a_part_follow_the_law_of_draws_from_all(use: str) -> None:
    tasks, rng = make_tasks(3, 9_000), np.random.default_rng(0)
    selector = make_selector(use, {}, tasks, 0)
    selector.observe(
        [outcome(t.key, (rng.random(8) < RATES[int(t.difficulty)]).astype(float)) for t in tasks[::4]]
    )
    everything = np.arange(len(tasks))
    if use == "difficulty":
        shapes = selector._posterior.shapes(everything)
    else:
        shapes = selector._columns["a"], selector._columns["b"]
    ours, exact = Counter(), Counter()
    rounds, n = 60, 64
    for _ in range(rounds):
        ours += kinds_of(selector, selector._choose(n))
        drawn = rng.beta(*shapes)
        exact += kinds_of(selector, best(everything, -np.abs(drawn - 0.5), n))
    for kind in exact | ours:
        # two samples of 3,840; four standard errors
        share = (ours[kind] + exact[kind]) / (2 * rounds * n)
        error = np.sqrt(2 * share * (1 - share) / (rounds * n))
        assert abs(ours[kind] - exact[kind]) / (rounds * n) < 4 * error + 1e-3, kind


@pytest.mark.slow
def test_every_task_is_as_often_a_candidate() -> None:
    tasks = make_tasks(1, 3000)
    selector = make_selector("random", {}, tasks, 0)
    selector.retire([task.key for task in tasks[::3]])
    counts = np.zeros(3000)
    for _ in range(3000):
        found = selector._candidates(200, least=10)
        assert len(set(found.tolist())) == len(found) >= 10
        counts[found] += 1
    in_play = selector._in_play
    assert not counts[~in_play].any()
    assert counts[in_play].mean() == pytest.approx(300, rel=0.02)
    assert counts[in_play].std() < 40


def test_candidates_are_enough_when_almost_all_are_retired() -> None:
    tasks = make_tasks(1, 2000)
    selector = make_selector("mopps", {}, tasks, 0)
    selector.retire([task.key for task in tasks[60:]])
    assert len(selector._candidates(50, least=50)) >= 50


@pytest.mark.slow
def test_sample_is_uniform_over_what_is_allowed() -> None:
    pool, rng = np.arange(100), np.random.default_rng(0)
    counts = np.zeros(100)
    for _ in range(4000):
        drawn = sample(pool, 5, lambda places: places % 10 == 3, rng)
        assert len(set(drawn)) == 5
        counts[drawn] += 1
    assert counts[3::10] == pytest.approx(np.full(10, 2000), rel=0.06)
    assert counts.sum() == 20_000
    assert sample(pool, 20, lambda places: places < 7, rng).__len__() == 7


def test_many_difficulties_become_sixteen_quantiles_and_added_tasks_join_them() -> None:
    tasks = [make_task("a", level, 0) for level in range(320)]
    roster = Roster(tasks)
    first = by_difficulty(roster)
    assert len(first) == 16
    assert np.bincount(first.codes).tolist() == [20] * 16
    roster.add([make_task("a", 1000, 1), make_task("b", 1, 2)])
    more = by_difficulty(roster)
    assert more.codes[:320].tolist() == first.codes.tolist()
    assert more.names[:16] == first.names
    assert more.names[more.codes[320]] == "a/quantile 16"
    assert more.names[more.codes[321]] == "b/1.0"


def test_clusters_of_embeddings_keep_what_belongs_together() -> None:
    roster = Roster([*make_tasks(3, 30), *make_tasks(2, 15, "b")])
    found = by_embedding(roster, "vector", 9, seed=0)
    kinds = [(task.taskset, *task.metadata["vector"]) for task in roster.tasks]
    numbers = dict(zip(kinds, found.codes.tolist(), strict=True))
    assert found.codes.tolist() == [numbers[kind] for kind in kinds]
    assert sorted(numbers.values()) == list(range(3 * 3 + 2 * 3))
    assert all(found.names[code].startswith(f"{kind[0]}/cluster ") for kind, code in numbers.items())
    roster.add([make_task("a", 2, 900)])
    again = by_embedding(roster, "vector", 9, seed=0)
    assert again.codes[:-1].tolist() == found.codes.tolist()


def with_vectors(vectors) -> list[Task]:
    made = make_tasks(1, len(vectors))
    return [replace(t, metadata={"vector": v}) for t, v in zip(made, vectors.tolist(), strict=True)]


def test_clusters_are_those_that_version_0_5_0_found() -> None:
    """Saved selectors name clusters by number, so another numbering would give them other statistics."""
    vectors = np.repeat(np.random.default_rng(0).standard_normal((40, 4)), 2, axis=0).astype(np.float32)
    found = by_embedding(Roster(with_vectors(vectors)), "vector", 6, seed=3)
    numbers = "13111101145400545341310243531333304535124505512531345045434134350421053543345401"
    assert "".join(map(str, found.codes.tolist())) == numbers
    few = by_embedding(Roster(with_vectors(vectors[:6])), "vector", 6, seed=3)
    assert (few.codes.tolist(), len(few)) == ([2, 2, 0, 1, 0, 1], 3)


def test_embeddings_without_scipy_say_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.cluster.vq", None)
    with pytest.raises(MissingExtraError, match=r"a selector with 'embedding' needs .*'scipy.*\[train\]"):
        by_embedding(Roster(make_tasks(3, 30)), "vector", 9, seed=0)


def test_roster_finds_places_and_keys_of_tasks_with_equal_ids() -> None:
    names = [f"set {i}" for i in range(5)]
    tasks = [task for name in names for task in make_tasks(1, 20, name)]
    roster = Roster(tasks[::-1])
    keys = [task.key for task in tasks]
    places = roster.places(keys)
    assert sorted(places) == list(range(100))
    assert roster.keys(places) == keys
    assert roster.unpack(roster.pack(np.array(places))).tolist() == places
    strangers = [TaskKey("set 0", "x"), TaskKey("none", keys[0].task_id), TaskKey("set 0", "0" * 32)]
    assert roster.places(strangers) == [-1, -1, -1]
