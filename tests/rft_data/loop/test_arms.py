"""The pinned explorer serves older weights, whose folder stays; groups are shared out, rewards kept apart."""

import math
from collections import Counter, deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.core.arms import Arm
from rft_data.core.errors import RoleDiedError
from rft_data.core.facts import arm_facts
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.words import GroupOutcome
from rft_data.loop.arms import Arms
from rft_data.loop.fleet import Fleet
from rft_data.loop.member import Member
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.loop.test_fleet import Explorer, assignment, home, published, versions

__all__ = ["versions"]


class Pinned:
    """A fleet of two whose second explorer is pinned."""

    def __init__(self, versions: VersionRegistry, behind: int, share: float = 0.5) -> None:
        self.new, self.old = Explorer("explorer-0"), Explorer("explorer-1")
        self.arms = Arms("explorer-1", share, behind, versions)
        self.fleet = Fleet(
            [self.new, self.old], versions, whole_rounds=False, deadline_s=60, max_restarts=2, arms=self.arms
        )

    def load(self) -> list[int]:
        """Let every load end; returns what the two serve."""
        while futures := [one.loading.future for one in self.fleet.members if one.loading]:
            for future in futures:
                future.set_result(0.0)
            self.fleet.collect()
        return [member.version for member in self.fleet.members]


@pytest.mark.slow
@pytest.mark.parametrize("behind", [1, 3])
def test_the_pinned_explorer_follows_so_many_publications_late(
    versions: VersionRegistry, behind: int
) -> None:
    pair = Pinned(versions, behind)
    served = []
    for step in range(7):
        pair.fleet.publish(published(versions, step))
        served.append(pair.load())
        assert Path(versions.ref(served[-1][1]).path).is_dir(), "the weights that it serves are kept"
    assert served == [[step, max(0, step - behind)] for step in range(7)]
    assert pair.old.calls[-1][0] == "load_weights"
    loads = sum(method == "load_weights" for method, _ in pair.old.calls)
    assert loads == 7 - behind, "what it serves already is not loaded again"
    on_disk = [ref.version for ref in versions.published()]
    assert on_disk == list(range(min(6 - behind - 1, 5), 7)), "what nobody needs any more is deleted"


@pytest.mark.slow
def test_publications_some_steps_apart_count_as_publications(versions: VersionRegistry) -> None:
    pair = Pinned(versions, behind=2 * 3)  # two publications, three steps apart
    for step in range(10):
        if step % 3 == 0:
            pair.fleet.publish(published(versions, step))
            pair.load()
        else:
            versions.issue(step)
    assert [versions.optimizer_step(member.version) for member in pair.fleet.members] == [9, 3]


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_weights_that_its_pinned_explorer_served(
    versions: VersionRegistry,
) -> None:
    pair = Pinned(versions, behind=2)
    for step in range(6):
        pair.fleet.publish(published(versions, step))
        pair.load()
    versions._held.clear()  # as in a new process
    again = Pinned(versions, behind=2)
    again.fleet.publish(published(versions, 4))  # its last checkpoint; version 6 has the weights of version 4
    assert again.load() == [6, 2]
    again.fleet.publish(published(versions, 5))
    assert again.load() == [7, 3]


def test_a_pinned_explorer_that_dies_comes_back_with_its_own_weights(versions: VersionRegistry) -> None:
    pair = Pinned(versions, behind=1)
    for step in range(3):
        pair.fleet.publish(published(versions, step))
        pair.load()
    pair.fleet.play([assignment(0)], 1, Arm.OLD)
    pair.old.last("explore").set_exception(RoleDiedError("killed"))
    assert pair.fleet.collect() == ([], [assignment(0)])
    turns = pair.fleet.turns()
    assert [next(turns) for _ in range(3)] == [(2, Arm.NEW)] * 3, "the others play meanwhile"
    pair.old.births[0].set_result(None)
    pair.fleet.collect()
    assert pair.load() == [2, 1]


def test_groups_go_to_explorers_of_the_arm_although_both_serve_the_same(versions: VersionRegistry) -> None:
    pair = Pinned(versions, behind=1)
    pair.fleet.publish(published(versions, 0))
    assert pair.load() == [0, 0]
    pair.fleet.play([assignment(0), assignment(1)], 0, Arm.NEW)
    pair.fleet.play([assignment(2)], 0, Arm.OLD)
    assert [member.load for member in pair.fleet.members] == [2, 1]


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.floats(0.01, 0.99), st.integers(2, 40))
def test_an_arm_is_given_its_share_of_the_groups(share: float, room: int) -> None:
    pair = Pinned(_Unversioned(), 1, share)  # type: ignore[arg-type]
    for member in pair.fleet.members:
        member.version = 0
    given: Counter[Arm] = Counter()
    under_way: deque[Member] = deque()
    for _ in range(200):
        turn = pair.arms.turn(pair.fleet.members)
        assert turn is not None
        given[turn[1]] += 1
        assert abs(given[Arm.OLD] - share * given.total()) < 2
        pair.fleet.play([assignment(0)], *turn)
        under_way.append(next(one for one in pair.fleet.members if pair.arms.arm(one) is turn[1]))
        if len(under_way) == room:
            ended = under_way.popleft()
            del ended.playing[next(iter(ended.playing))]


def test_clients_who_do_not_come_leave_the_places_to_the_others() -> None:
    pair = Pinned(_Unversioned(), 1, 0.25)  # type: ignore[arg-type]
    new, old = pair.fleet.members
    new.version = old.version = 0
    for _ in range(100):
        turn = pair.arms.turn(pair.fleet.members)
        assert turn is not None
        pair.fleet.play([assignment(0)], *turn)
        while new.load >= 8:
            del new.playing[next(iter(new.playing))]
    assert old.load == 3, "a quarter of those under way, although nobody of this arm came"


class _Unversioned:
    """A registry without versions."""

    def published(self) -> list[object]:
        return []


def result(ordinal: int, *rewards: float | None, outcome: str = "arrived") -> GroupResult:
    ticket = Ticket(f"run/0-{ordinal}", ordinal, 0)
    return GroupResult(ticket, home(0).task, rewards, GroupOutcome(outcome), 0)


def test_each_arm_has_the_mean_of_its_own_groups_with_a_standard_error(versions: VersionRegistry) -> None:
    pair = Pinned(versions, behind=1)
    pair.fleet.publish(published(versions, 0))
    pair.load()
    pair.fleet.play([assignment(0), assignment(2), assignment(4), assignment(5)], 0, Arm.NEW)
    pair.fleet.play([assignment(1), assignment(3)], 0, Arm.OLD)
    pair.arms.observe(result(0, 0.1, None))
    pair.arms.observe(result(1, 1.0))
    pair.arms.observe(result(2, 0.2, 0.5))
    pair.arms.observe(result(3, None))
    pair.arms.observe(result(4, 0.9, outcome="failed"))
    pair.arms.observe(result(5, 0.7))
    pair.arms.observe(result(9, 0.5))  # played before a restart: nobody knows by whom
    found = arm_facts(pair.arms.take_rewards())
    mean = (0.1 + 0.35 + 0.7) / 3
    squares = (0.1 - mean) ** 2 + (0.35 - mean) ** 2 + (0.7 - mean) ** 2
    assert found == {
        "ab/old/n": 1.0,
        "ab/old/reward": 1.0,
        "ab/new/n": 3.0,
        "ab/new/reward": pytest.approx(mean, rel=1e-15),
        "ab/new/reward_stderr": pytest.approx(math.sqrt(squares / 2 / 3), rel=1e-15),
    }
    assert arm_facts(pair.arms.take_rewards()) == {"ab/old/n": 0.0, "ab/new/n": 0.0}, "counted once"
