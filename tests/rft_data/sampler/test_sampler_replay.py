"""Replay: the distribution of its draws, its decay, its ratio of uses to arrivals, its repeatability."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.groups import Ticket
from rft_data.sampler import Candidate, History, Moment, make_policy, make_sampler
from rft_data.sampler.ledger import Ledger
from rft_data.sampler.pool import Pool
from tests.rft_data.sampler.memory import House, MemoryVersions, result, stored


def candidate(place: int, step: int = 0, uses: int = 1, **changes: object) -> Candidate:
    made = result(Ticket(f"run/0-{place:08d}", place, 0), **changes)
    return Candidate(made, place, place, step, step, uses)


def spread(reward: float) -> tuple[float, float]:
    """Rewards whose mean absolute deviation is `reward`."""
    return (-reward, reward)


@pytest.mark.slow
def test_draws_follow_priority_and_age() -> None:
    """First draws of many leases against (p + floor)^alpha exp(step / tau), computed directly."""
    alpha, tau, leases = 0.7, 3.0, 3000
    policy = make_policy("replay", {"alpha": alpha, "tau": tau})
    priorities, steps = [0.0, 0.5, 1.0, 2.0], [4, 0, 3, 1]
    for place, (priority, step) in enumerate(zip(priorities, steps, strict=True)):
        policy.add(candidate(place, step, rewards=spread(priority)))
    weights = np.array(
        [(p + 1e-3) ** alpha * math.exp(s / tau) for p, s in zip(priorities, steps, strict=True)]
    )
    drawn = Counter(policy.choose(1, moment(lease))[0].place for lease in range(leases))
    expected = weights / weights.sum()
    found = np.array([drawn[place] / leases for place in range(4)])
    error = np.sqrt(expected * (1 - expected) / leases)
    assert np.all(np.abs(found - expected) < 4 * error)


@pytest.mark.slow
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
    made = candidate(0, rewards=(0.0, 0.0, 3.0, None))
    assert math.exp(policy._log_weight(made)) == pytest.approx(np.var([0, 0, 3]) + 1e-3)


def test_weights_that_a_float_cannot_hold_are_drawn_all_the_same() -> None:
    policy = make_policy("replay", {"tau": 1e-4})
    for place in range(8):
        policy.add(candidate(place, step=place))
    assert [c.place for c in policy.choose(3, moment(0))] == [7, 6, 5]


def moment(step: int, **changes: object) -> Moment:
    given = {"groups_per_step": 2, "max_staleness": None, "inserted": 100, "in_flight": 0}
    return Moment(lease=step, step=step, **{**given, "fresh_in_flight": 0, "reuses": 0, **changes})


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
    metrics = house.sampler.metrics()
    assert metrics["reuses"] == uses.total() - len(uses)
    assert metrics["samples_per_insert"] == 2.0
    assert (metrics["reused_share"], metrics["reused_age_max"]) == (0.5, 5.0)
    house.fill(1)
    assert uses.total() + len(house.train(step)) == 14
    assert house.lease(step + 1) is None


def test_a_lease_that_needs_more_reuse_than_allowed_is_not_given() -> None:
    house = replaying(groups=3, samples_per_insert=1.4)
    house.fill(5)
    house.train(0)  # 2 unused are left, and 0.4 * 5 = 2 uses beyond the first are allowed
    assert house.lease(1, 5) is None
    assert len(house.lease(1, 4).group_ids) == 4


def synchronous(steps: int, arrives: Callable[[Ticket], bool] = lambda _: True, **args: object) -> House:
    """A run in which every step's groups are sampled by its own weights, refilled where they are dropped."""
    house = replaying(bound=0, **{"groups": 8, **args})
    for step in range(steps):
        for _ in range(20):
            for ticket in house.sampler.admit(100, house.versions.latest):
                assert house.lease(step) is None, "a lease waits for the groups that were admitted for it"
                house.close(ticket, kept=arrives(ticket))
        lease = house.lease(step)
        assert lease is not None, f"stuck before step {step}: {house.sampler.conservation()}"
        house.versions.issue(step + 1)
        house.sampler.settle(lease)
    return house


def fresh_by_step(house: House) -> list[int]:
    seen: set[str] = set()
    counts = []
    for lease in house.ledger.leases("trainer"):
        counts.append(len(set(lease.group_ids) - seen))
        seen.update(lease.group_ids)
    return counts


def test_reuse_saves_exploring_where_nothing_older_may_be_trained_first() -> None:
    """The defect: with max_staleness 0 every used group expired, and 16 uses cost 18 groups."""
    house = synchronous(9)
    assert fresh_by_step(house) == [8] + [4] * 8
    assert house.sampler.metrics()["samples_per_insert"] == pytest.approx(72 / 40)
    assert house.sampler.conservation()["stale"] == 0


def test_dropped_groups_are_replaced_and_never_block_a_step() -> None:
    house = synchronous(9, lambda ticket: ticket.ordinal % 3 == 0)
    assert fresh_by_step(house) == [8] + [4] * 8


@pytest.mark.parametrize(
    ("args", "fresh"),
    [
        ({"samples_per_insert": 3.0, "reuse_window": 2}, [8, 3, 3, 2, 3, 3, 2, 3, 3]),
        ({"samples_per_insert": 2.0, "max_reuse": 2}, [8, 4, 4, 4, 4, 4, 4, 4, 4]),
        ({"samples_per_insert": 4.0, "groups": 3}, [3, 1, 1, 1, 0, 1, 1, 1, 0]),
    ],
)
def test_what_the_used_groups_cannot_fill_is_explored(args: dict[str, object], fresh: list[int]) -> None:
    house = synchronous(9, **args)
    assert fresh_by_step(house) == fresh
    steps = {made.ticket.group_id: house.versions.optimizer_step(made.version_min) for made in house.history}
    ages = [lease.step - steps[name] for lease in house.ledger.leases("trainer") for name in lease.group_ids]
    assert max(ages) <= args.get("reuse_window", 8)


def test_a_lease_waits_for_an_open_group_that_would_be_too_old_after_it() -> None:
    house = replaying(groups=2, bound=1)
    slow, *others = house.sampler.admit(4, house.versions.latest)
    for ticket in others:
        house.close(ticket)
    house.train(0)
    assert house.sampler.ready == 0
    assert house.lease(1) is None, "the slow group could be trained in this lease at the latest"
    house.close(slow)
    assert house.lease(1).group_ids[0] == slow.group_id


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


def test_replay_beyond_the_window_ends_without_a_stale_group() -> None:
    """A group that was trained and has grown too old is not drawn again, and stays trained."""
    house = replaying(bound=1, samples_per_insert=2.0, reuse_window=1)
    house.fill(3)
    for step in range(2):
        house.train(step)
    house.versions.issue(4)
    assert house.lease(4, 1) is None
    assert house.sampler.conservation()["trained"] == 3
    assert not house.ledger.retired("trainer")


def test_replay_names_what_is_out_of_range() -> None:
    with pytest.raises(RecipeError, match="replay: 'tau', 'samples_per_insert' out of range"):
        make_policy("replay", {"tau": 0.0, "samples_per_insert": 0.5})
    with pytest.raises(RecipeError, match="'samples_per_insert' is 5, and a group is trained at most"):
        make_policy("replay", {"samples_per_insert": 5.0})
    with pytest.raises(RecipeError, match=r"within 'reuse_window' \(2\) steps"):
        make_policy("replay", {"samples_per_insert": 3.5, "reuse_window": 2})


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


@pytest.mark.slow
@given(CHANGES, st.integers(0, 10))
def test_pool_is_a_sorted_list(changes: list[tuple[str, int]], n: int) -> None:
    pool = Pool(lambda c: -c.place)
    live: set[int] = set()
    for change, place in changes:
        getattr(pool, change)(candidate(place))
        (live.add if change == "add" else live.discard)(place)
        assert [c.place for c in pool.first(n)] == sorted(live, reverse=True)[:n]
    assert len(pool) == len(live)


@pytest.mark.slow
def test_pool_drops_entries_that_never_come_up() -> None:
    pool = Pool(lambda c: c.place)
    for place in range(20_000):
        pool.add(candidate(place))
        if place:
            pool.discard(candidate(place))
    assert len(pool._heap) < 3000
    assert [c.place for c in pool.first(5)] == [0]
