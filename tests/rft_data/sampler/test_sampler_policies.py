"""Each policy's order, and what it does to admission and the sweep."""

from collections import Counter

import pytest

from rft_data.core.errors import RecipeError
from rft_data.sampler import Candidate, Moment, Policy, make_policy
from tests.rft_data.sampler.memory import House, stored


def ordinals(lease) -> list[int]:
    return [int(group_id.rpartition("-")[2]) for group_id in lease.group_ids]


# --- order of admission --------------------------------------------------------------------------


def test_fifo_waits_for_the_oldest_open_group() -> None:
    house = House("fifo", groups=2, bound=1)
    slow, *fast = house.sampler.admit(4, 0)
    for ticket in fast:
        house.close(ticket)
    assert house.lease(0) is None
    assert house.sampler.ready == 0
    house.close(slow)
    assert ordinals(house.lease(0)) == [0, 1]


def test_fifo_goes_on_when_the_oldest_failed() -> None:
    house = House("fifo", groups=2, bound=1)
    slow, *fast = house.sampler.admit(4, 0)
    for ticket in fast:
        house.close(ticket)
    house.close(slow, "failed")
    assert house.train(0) == [1, 2]


def test_fifo_leases_the_groups_before_a_straggler() -> None:
    house = House("fifo", groups=3, bound=1)
    tickets = house.sampler.admit(6, 0)
    for ticket in (tickets[0], tickets[1], tickets[3]):
        house.close(ticket)
    assert house.sampler.ready == 2
    assert house.lease(0) is None
    assert ordinals(house.lease(0, 2)) == [0, 1]


def test_windowed_passes_a_straggler_by_the_window_and_then_waits() -> None:
    house = House("windowed", window=3, groups=2, bound=None)
    slow, *fast = house.sampler.admit(8, 0)
    for ticket in fast:
        house.close(ticket)
    assert house.train(0) == [1, 2]
    assert house.sampler.ready == 1
    assert house.lease(1) is None
    house.close(slow)
    assert house.train(1) == [0, 3]


def test_windowed_passes_nobody_who_would_then_be_too_old() -> None:
    """The bound is 1 step: a group of version 0 can be trained in step 0 or 1, no later."""
    house = House("windowed", window=100, groups=2, bound=1)
    slow, *fast = house.sampler.admit(4, 0)
    for ticket in fast:
        house.close(ticket)
    assert house.train(0) == [1, 2]
    assert house.lease(1) is None
    house.close(slow)
    assert house.train(1) == [0, 3]
    assert house.sampler.conservation()["stale"] == 0


def test_windowed_counts_the_stragglers_that_must_be_trained_before_a_straggler() -> None:
    """One group per step, bound 2: of two open groups of version 0 the second cannot wait for step 3."""
    house = House("windowed", window=100, groups=1, bound=2)
    first, second, third = house.sampler.admit(3, 0)
    house.close(third)
    assert house.train(0) == [2]
    house.fill(1, version=1)
    assert house.lease(1) is None
    house.close(first)
    assert house.train(1) == [0]
    house.close(second)
    assert house.train(2) == [1]


def test_a_released_lease_has_passed_nobody() -> None:
    house = House("windowed", window=2, groups=2, bound=None)
    slow, *fast = house.sampler.admit(5, 0)
    for ticket in fast:
        house.close(ticket)
    for _ in range(3):
        lease = house.lease(0)
        assert ordinals(lease) == [1, 2]
        house.sampler.release(lease, "given back")
    assert house.train(0) == [1, 2]
    assert house.lease(1) is None
    house.close(slow)
    assert house.train(1) == [0, 3]


def test_windowed_refuses_a_negative_window() -> None:
    with pytest.raises(RecipeError, match="'window' is -1; give a number of groups, 0 or more"):
        make_policy("windowed", {"window": -1})


# --- other orders --------------------------------------------------------------------------------


def test_ready_first_leases_in_order_of_arrival_also_after_a_release() -> None:
    house = House("ready_first", groups=2, bound=1)
    tickets = house.sampler.admit(4, 0)
    for number in (2, 0, 3):
        house.close(tickets[number])
    lease = house.lease(0)
    assert ordinals(lease) == [2, 0]
    house.close(tickets[1])
    house.sampler.release(lease, "given back")
    assert ordinals(house.lease(0)) == [2, 0]
    assert ordinals(house.lease(1)) == [3, 1]


def test_fresh_first_leases_the_newest_weights_first_and_sweeps_what_never_had_its_turn() -> None:
    house = House("fresh_first", groups=2, bound=2)
    house.fill(4)  # of version 0
    assert house.train(0) == [0, 1]
    house.fill(2, version=1)
    assert house.train(1) == [4, 5]
    house.fill(2, version=2)
    assert house.train(2) == [6, 7]
    assert house.lease(3) is None
    assert house.sampler.conservation()["stale"] == 2
    assert set(house.ledger.retired("trainer").values()) == {"stale"}


class Backwards(Policy):
    """Last admitted first: a policy of one's own, with a state."""

    def __init__(self, limit: int) -> None:
        self.here: dict[int, Candidate] = {}
        self.chosen = 0
        self.most = limit

    def add(self, candidate: Candidate) -> None:
        self.here[candidate.place] = candidate

    def discard(self, candidate: Candidate) -> None:
        self.here.pop(candidate.place, None)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        return [self.here[place] for place in sorted(self.here, reverse=True)[: min(n, self.most)]]

    def state_dict(self) -> dict:
        return {"chosen": self.chosen}

    def load_state_dict(self, state: dict) -> None:
        self.chosen = state["chosen"]


def test_a_class_of_ones_own_decides_the_order_and_keeps_its_state() -> None:
    path = f"{__name__}:Backwards"
    house = House(path, groups=2, bound=1, limit=2)
    house.fill(4)
    assert house.train(0) == [3, 2]
    state = {**house.sampler.state_dict(), "policy": {"chosen": 9}}
    house.sampler.load_state_dict(state)
    assert house.sampler.state_dict()["policy"] == {"chosen": 9}


# --- mix -----------------------------------------------------------------------------------------


def mixed(**changes: object) -> House:
    settings = {"groups": 3, "bound": None, "parts": {"own": 3, "expert/": 1, "old/": 1}, "max_uses": 2}
    settings["history"] = [*stored("old", 40), *stored("expert", 40)]
    return House("mix", **{**settings, **changes})


def test_mix_is_exact_wherever_the_shares_are_whole_and_never_a_group_off() -> None:
    house = mixed()
    house.fill(100)
    taken: Counter[str] = Counter()
    for step in range(25):
        lease = house.lease(step)
        taken.update(group_id.split("/")[0] for group_id in lease.group_ids)
        house.versions.issue(step + 1)
        house.sampler.settle(lease)
        total = 3 * (step + 1)
        for name, part in {"run": 3, "expert": 1, "old": 1}.items():
            assert abs(taken[name] - total * part / 5) < 1
            if total % 5 == 0:
                assert taken[name] * 5 == total * part
    assert taken == {"run": 45, "expert": 15, "old": 15}


def test_mix_goes_on_at_the_same_ratio_after_a_restart() -> None:
    straight, stopped = mixed(), mixed()
    for house in (straight, stopped):
        house.fill(60)
    expected = [straight.lease(step).group_ids for step in range(12)]
    found = []
    for step in range(12):
        if step == 5:
            stopped.start(settled_steps=5)
        found.append(stopped.lease(step).group_ids)
        stopped.versions.issue(step + 1)
        stopped.sampler.settle(stopped.ledger.find("trainer", step))
    assert found == expected


def test_mix_explores_only_what_its_ratio_will_train_in_time() -> None:
    house = mixed(groups=4, bound=1, parts={"own": 1, "old/": 1}, history=stored("old", 40))
    tickets = house.sampler.admit(100, 0)
    assert len(tickets) == 4  # two steps of two own groups each
    for ticket in tickets:
        house.close(ticket)
    assert house.sampler.admit(100, 0) == []
    assert len(house.lease(0).group_ids) == 4


def test_mix_uses_every_stored_group_once_before_any_twice_and_says_when_they_are_used_up() -> None:
    house = mixed(groups=2, parts={"own": 1, "old/": 1}, history=stored("old", 3), max_reuse=2)
    house.fill(10)
    used = [house.ledger.find("trainer", step) for step in range(6) if house.train(step)]
    old = [group_id for lease in used for group_id in lease.group_ids if group_id.startswith("old/")]
    assert old == [f"old/0-{n:08d}" for n in (0, 1, 2, 0, 1, 2)]
    with pytest.raises(RecipeError, match="source 'old/' has no group left after 6 uses, at most 2 of each"):
        house.lease(6)


def test_stored_groups_of_others_have_no_age_and_hold_no_place() -> None:
    house = House("fifo", groups=2, bound=0, history=stored("old", 6))
    assert house.sampler.outstanding == 0
    assert house.sampler.conservation()["admitted"] == 6
    assert len(house.sampler.admit(10, 0)) == 2
    for step in range(3):
        house.train(step)
    assert house.sampler.conservation()["trained"] == 6


@pytest.mark.parametrize("parts", [{}, {"own": 0}, {"own": 0.5, "old/": 0.5}])
def test_mix_wants_whole_parts(parts: dict) -> None:
    with pytest.raises(RecipeError, match="whole number of at least 1"):
        make_policy("mix", {"parts": parts})


def test_mix_names_a_group_of_no_source() -> None:
    with pytest.raises(
        RecipeError, match=r"group 'new/0-00000000' belongs to no source in 'parts' \(own, old/\)"
    ):
        House("mix", parts={"own": 1, "old/": 1}, history=stored("new", 1))


def test_mix_without_own_groups_explores_nothing() -> None:
    house = House("mix", parts={"old/": 1}, history=stored("old", 4), bound=0)
    assert house.sampler.admit(4, 0) == []
    assert len(house.lease(0).group_ids) == 2
    unbounded = House("mix", parts={"old/": 1}, history=stored("old", 4), bound=None)
    with pytest.raises(RecipeError, match="has no 'own', so nothing explored could be trained"):
        unbounded.sampler.admit(1, 0)
