"""Replay: the distribution of its draws, its decay, its ratio of uses to arrivals, its repeatability."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Ticket
from rft_data.sampler import Candidate, History, Moment, make_policy, make_sampler
from rft_data.sampler.ledger import Ledger
from rft_data.sampler.pool import Pool
from rft_data.sampler.weighted_pool import WeightedPool
from tests.rft_data.sampler.memory import House, MemoryVersions, result, stored


def candidate(place: int, **changes: object) -> Candidate:
    made = result(Ticket(f"run/0-{place:08d}", place, 0), **changes)
    return Candidate(made, place, place, 0, 0)


def spread(reward: float) -> tuple[float, float]:
    """Rewards whose mean absolute deviation is `reward`."""
    return (-reward, reward)


def test_draws_follow_priority_and_age() -> None:
    """First draws of many leases against (p + floor)^alpha exp(step / tau), computed directly."""
    alpha, tau, leases = 0.7, 3.0, 3000
    policy = make_policy("replay", {"alpha": alpha, "tau": tau})
    priorities, steps = [0.0, 0.5, 1.0, 2.0], [4, 0, 3, 1]
    for place, (priority, step) in enumerate(zip(priorities, steps, strict=True)):
        made = result(Ticket(f"run/0-{place:08d}", place, 0), rewards=spread(priority))
        policy.add(Candidate(made, place, place, step, step))
    weights = np.array(
        [(p + 1e-3) ** alpha * math.exp(s / tau) for p, s in zip(priorities, steps, strict=True)]
    )
    drawn = Counter(policy.choose(1, moment(lease))[0].place for lease in range(leases))
    expected = weights / weights.sum()
    found = np.array([drawn[place] / leases for place in range(4)])
    error = np.sqrt(expected * (1 - expected) / leases)
    assert np.all(np.abs(found - expected) < 4 * error)


def test_a_lease_is_drawn_without_replacement_in_proportion() -> None:
    """Chance of each ordered pair: w_i / W * w_j / (W - w_i)."""
    policy = make_policy("replay", {"alpha": 1.0})
    weights = [0.2, 0.3, 0.5]
    for place, weight in enumerate(weights):
        policy.add(candidate(place, rewards=spread(weight - 1e-3)))
    pairs = Counter(tuple(c.place for c in policy.choose(2, moment(lease))) for lease in range(4000))
    for (first, second), times in pairs.items():
        chance = weights[first] * weights[second] / (1 - weights[first])
        assert abs(times / 4000 - chance) < 4 * math.sqrt(chance * (1 - chance) / 4000)
    assert len(pairs) == 6


def test_variance_is_the_mean_square_deviation() -> None:
    policy = make_policy("replay", {"by": "variance", "alpha": 1.0})
    policy.add(candidate(0, rewards=(0.0, 0.0, 3.0, None)))
    assert math.exp(policy._unused.log_total) == pytest.approx(np.var([0, 0, 3]) + 1e-3)


def moment(lease: int, inserted: int = 100, reuses: int = 0):
    return Moment(lease, lease, 2, None, inserted, 0, reuses)


def replaying(**changes: object) -> House:
    settings = {"groups": 2, "bound": None, "max_uses": 4, "max_reuse": 4, "samples_per_insert": 2.0}
    return House("replay", **{**settings, **changes})


def test_samples_per_insert_is_never_exceeded_and_is_reached() -> None:
    house = replaying()
    house.fill(6)
    uses: Counter[int] = Counter()
    step = 0
    while house.lease(step) is not None:
        uses.update(house.train(step))
        step += 1
    assert uses.total() == 12  # 6 arrived, 2 uses each over the run
    assert max(uses.values()) <= 4
    assert house.sampler.metrics()["reuses"] == uses.total() - len(uses)
    house.fill(1)
    assert uses.total() + len(house.train(step)) == 14
    assert house.lease(step + 1) is None


def test_a_lease_that_needs_more_reuse_than_allowed_is_not_given() -> None:
    house = replaying(groups=3, samples_per_insert=1.4)
    house.fill(5)
    house.train(0)  # 2 unused are left, and 0.4 * 5 = 2 uses beyond the first are allowed
    assert house.lease(1, 5) is None
    assert len(house.lease(1, 4).group_ids) == 4


def test_a_group_stays_trained_while_it_is_trained_again() -> None:
    house = replaying(groups=1)
    house.fill(1)
    house.train(0)
    trained = house.sampler.conservation()
    assert (trained["trained"], house.sampler.outstanding) == (1, 0)
    again = house.lease(1)
    assert again is not None
    assert house.sampler.conservation() == trained
    house.sampler.release(again, "given back")
    assert house.sampler.conservation() == trained
    assert house.lease(1).group_ids == again.group_ids


def test_a_run_that_was_restarted_draws_what_it_would_have_drawn() -> None:
    def leases(restart_at: tuple[int, ...]) -> list[tuple[str, ...]]:
        house = replaying(bound=30, tau=2.0)
        found = []
        for step in range(20):
            for ticket in house.sampler.admit(1, house.versions.latest):
                house.close(ticket, rewards=spread(1 + step % 3))
            lease = house.lease(step)
            if lease is None:
                for ticket in house.sampler.admit(1, house.versions.latest):
                    house.close(ticket, rewards=spread(1.5))
                lease = house.lease(step)
            found.append(lease.group_ids)
            house.versions.issue(step + 1)
            house.sampler.settle(lease)
            if step + 1 in restart_at:
                house.start(settled_steps=step + 1)
        return found

    assert leases(()) == leases((3, 4, 11))


def test_replay_beyond_the_bound_ends_without_a_stale_group() -> None:
    """A group that was trained and has grown too old is not drawn again, and stays trained."""
    house = replaying(bound=1, samples_per_insert=4.0)
    house.fill(4)
    for step in range(2):
        house.train(step)
    assert house.lease(2) is None
    counts = house.sampler.conservation()
    assert counts["trained"] + counts["stale"] == 4
    assert len(house.ledger.retired("trainer")) == counts["stale"]


def test_replay_names_what_is_out_of_range() -> None:
    with pytest.raises(RecipeError, match="replay: 'tau', 'samples_per_insert' out of range"):
        make_policy("replay", {"tau": 0.0, "samples_per_insert": 0.5})


def test_the_stored_ledger_allows_the_uses_that_replay_takes(tmp_path) -> None:
    with Buffer(tmp_path / "buffer") as buffer:
        ledger, versions = Ledger(buffer, "run", 0, max_uses=2), MemoryVersions()
        versions.issue(0)
        named = {"consumer": "trainer", "groups_per_step": 2, "max_staleness": None}
        args = {"max_reuse": 2, "samples_per_insert": 2.0}
        history = History(stored("old", 4))
        sampler = make_sampler("replay", args, ledger=ledger, versions=versions, history=history, **named)
        for step in range(4):
            sampler.settle(sampler.lease("trainer", step, 2, 0))
        assert sampler.lease("trainer", 4, 2, 0) is None
        uses = Counter(g for lease in Ledger(buffer, "run", 1).leases("trainer") for g in lease.group_ids)
        assert set(uses.values()) == {2}


# --- the indices ---------------------------------------------------------------------------------

CHANGES = st.lists(st.tuples(st.sampled_from(["add", "add", "discard"]), st.integers(0, 40)), max_size=120)


@given(CHANGES, st.integers(0, 10))
def test_pool_is_a_sorted_list(changes: list[tuple[str, int]], n: int) -> None:
    pool = Pool(lambda c: -c.place)
    live: set[int] = set()
    for change, place in changes:
        getattr(pool, change)(candidate(place))
        (live.add if change == "add" else live.discard)(place)
        assert [c.place for c in pool.first(n)] == sorted(live, reverse=True)[:n]
    assert len(pool) == len(live)


def test_pool_drops_entries_that_never_come_up() -> None:
    pool = Pool(lambda c: c.place)
    for place in range(20_000):
        pool.add(candidate(place))
        if place:
            pool.discard(candidate(place))
    assert len(pool._heap) < 3000
    assert [c.place for c in pool.first(5)] == [0]


@given(CHANGES, st.floats(0, 1, exclude_max=True))
def test_weighted_pool_draws_by_prefix_sums(changes: list[tuple[str, int]], u: float) -> None:
    pool = WeightedPool()
    order: list[int] = []
    live: set[int] = set()
    for change, place in changes:
        if change == "add":
            pool.add(candidate(place), float(place % 7))
            live.add(place)
            order += [] if place in order else [place]
        else:
            pool.discard(candidate(place))
            live.discard(place)
    if not live:
        assert pool.log_total == -math.inf
        with pytest.raises(LookupError, match="nothing to draw"):
            pool.draw(u)
        return
    weights = np.array([math.exp(place % 7) for place in sorted(live)])
    assert pool.log_total == pytest.approx(math.log(weights.sum()))
    drawn, log_weight = pool.draw(u)
    assert drawn.place in live
    assert log_weight == drawn.place % 7


def test_a_weighted_pool_rebuilt_in_order_draws_the_same() -> None:
    grown, rebuilt = WeightedPool(), WeightedPool()
    rng = np.random.default_rng(0)
    log_weights = rng.normal(size=300) * 5
    for place in range(300):
        grown.add(candidate(place), log_weights[place])
        if place % 3:
            grown.discard(candidate(place))
    for place in range(0, 300, 3):
        rebuilt.add(candidate(place), log_weights[place])
    for u in rng.random(500):
        assert grown.draw(u)[0].place == rebuilt.draw(u)[0].place
    edges = np.cumsum(np.exp(log_weights[::3])) / np.exp(log_weights[::3]).sum()
    for u in rng.random(500):
        assert rebuilt.draw(u)[0].place == 3 * int(np.searchsorted(edges, u, side="right"))


def test_weights_that_a_float_cannot_hold_are_drawn_all_the_same() -> None:
    pool = WeightedPool()
    for place in range(8):
        pool.add(candidate(place), 10_000.0 * place)
    assert pool.draw(0.5)[0].place == 7
    pool.discard(candidate(7))
    assert pool.draw(0.0)[0].place == 6
    assert pool.log_total == 60_000.0
