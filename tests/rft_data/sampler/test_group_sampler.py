"""The book of a sampler beyond what any policy decides: restarts, retirements, rounds, gauges, making one."""

import dataclasses

import pytest

from rft_data.core.errors import ConflictError, RecipeError, UnknownComponentError
from rft_data.core.groups import Ticket
from rft_data.sampler import make_sampler
from rft_data.sampler.groups import LeasableGroups
from rft_data.sampler.policy import Candidate
from tests.rft_data.sampler.memory import House, MemoryLedger, MemoryVersions, result


def make(use: str, args: dict | None = None, **changes: object):
    versions = MemoryVersions()
    versions.issue(0)
    named = {"ledger": MemoryLedger(), "versions": versions, "consumer": "trainer", "groups_per_step": 2}
    return make_sampler(use, args or {}, **{**named, "max_staleness": 0, **changes})


# --- making one ----------------------------------------------------------------------------------


def test_an_unknown_sampler_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownComponentError, match="did you mean 'windowed'"):
        make("windowd")


def test_wrong_arguments_are_named_with_those_it_takes() -> None:
    with pytest.raises(RecipeError, match="missing a required argument: 'window'; it takes window"):
        make("windowed")
    with pytest.raises(RecipeError, match="unexpected keyword argument 'window'; it takes nothing"):
        make("fifo", {"window": 3})


def test_a_class_that_is_no_policy_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'fractions:Fraction' makes a Fraction; derive it from .*Policy"):
        make("fractions:Fraction")


def test_more_uses_than_the_ledger_allows_are_refused() -> None:
    with pytest.raises(RecipeError, match="up to 4 times, the ledger allows 1; open it with max_uses=4"):
        make("replay")


# --- admission -----------------------------------------------------------------------------------


def test_engines_of_different_versions_share_one_book() -> None:
    house = House("fifo", groups=2, bound=2)
    house.fill(2)
    house.train(0)
    late = house.sampler.admit(100, 0)  # one step behind: two of the three steps' places
    assert [t.version for t in late] == [0] * 4
    assert house.sampler.admit(100, 0) == []
    fresh = house.sampler.admit(100, 1)
    assert [t.ordinal for t in fresh] == [6, 7]


def test_without_a_bound_every_ticket_asked_for_is_given() -> None:
    assert len(House("fifo", bound=None).sampler.admit(500, 0)) == 500


def test_an_engine_past_the_bound_is_given_nothing() -> None:
    house = House("fifo", groups=2, bound=0)
    house.versions.issue(1)
    assert house.sampler.admit(5, 0) == []
    assert len(house.sampler.admit(5, 1)) == 2


def test_rounds_count_the_calls_that_gave_tickets_also_after_a_restart() -> None:
    house = House("fifo", groups=2, bound=1)
    rounds = [{t.round for t in house.sampler.admit(2, 0)}, {t.round for t in house.sampler.admit(0, 0)}]
    third = house.sampler.admit(2, 0)
    assert [*rounds, {t.round for t in third}] == [{0}, set(), {1}]
    house.close(third[0])
    house.ledger.attempt = 1
    assert {t.round for t in house.start().admit(1, 0)} == {2}


# --- restarts ------------------------------------------------------------------------------------


def test_tickets_open_at_the_checkpoint_that_never_came_home_are_cancelled() -> None:
    house = House("fifo", groups=2, bound=3)
    house.close(house.sampler.admit(5, 0)[0])
    state = house.sampler.state_dict()
    house.ledger.attempt = 1
    assert house.start().conservation()["admitted"] == 1
    house.sampler.load_state_dict(state)
    counts = house.sampler.conservation()
    assert (counts["admitted"], counts["cancelled"], counts["ready"]) == (5, 4, 1)
    assert house.sampler.admit(1, 0)[0].ordinal == 5


def test_retired_groups_are_stale_or_cancelled_by_their_reason() -> None:
    house = House("fifo", groups=2, bound=3)
    tickets = house.fill(4)
    house.close(house.sampler.admit(1, 0)[0], kept=False)
    house.ledger.retire("trainer", [tickets[0].group_id], "stale")
    house.ledger.retire("trainer", [tickets[1].group_id, house.history[-1].ticket.group_id], "superseded")
    counts = house.start().conservation()
    assert {k: counts[k] for k in ("stale", "cancelled", "ready", "dropped")} == {
        "stale": 1,
        "cancelled": 1,
        "ready": 2,
        "dropped": 1,
    }
    assert house.sampler.outstanding == 2


@pytest.mark.parametrize("why", ["stale", "superseded"])
@pytest.mark.parametrize("settled", [0, 1])
def test_a_group_that_was_leased_before_it_was_retired_stays_in_its_lease_over_a_restart(
    why: str, settled: int
) -> None:
    house = House("fifo", groups=2, bound=1)
    tickets = house.fill(4)
    lease = house.lease(0)
    if settled:
        house.versions.issue(1)
        house.sampler.settle(lease)
    house.ledger.retire("trainer", [lease.group_ids[1], tickets[3].group_id], why)
    counts = house.start(settled_steps=settled).conservation()
    named = {"trained": 2 * settled, "leased": 2 - 2 * settled, "ready": 1}
    named |= {"stale": why == "stale", "cancelled": why == "superseded", "admitted": 4}
    assert counts | named == counts
    if not settled:
        assert house.train(0) == [0, 1]
        assert house.sampler.conservation()["trained"] == 2


def test_a_group_stored_after_its_ordinal_was_given_again_is_counted_beside() -> None:
    house = House("fifo", groups=2, bound=3)
    lost = house.sampler.admit(1, 0)[0]
    house.ledger.attempt = 1
    again = house.start().admit(1, 0)[0]
    assert (lost.ordinal, again.ordinal) == (0, 0)
    house.close(again)
    house.history.append(result(lost))
    counts = house.start().conservation()
    assert (counts["admitted"], counts["ready"], counts["cancelled"]) == (2, 2, 0)


# --- answers that were lost ----------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1])
def test_a_lease_released_by_a_call_that_failed_is_given_again(bound: int) -> None:
    house = House("fifo", groups=2, bound=bound)
    house.fill(2 + 2 * bound)
    lease = house.lease(0)
    house.ledger.fails_after = "release"
    with pytest.raises(OSError, match="its answer was lost"):
        house.sampler.release(lease, "given back")
    assert house.lease(0).group_ids == lease.group_ids
    assert house.sampler.conservation()["leased"] == 2


def test_a_sweep_whose_answer_was_lost_is_done_again() -> None:
    house = House("fifo", groups=2, bound=0)
    house.fill(2)
    house.versions.issue(1)
    house.ledger.fails_after = "retire"
    with pytest.raises(OSError, match="its answer was lost"):
        house.lease(1)
    assert house.sampler.conservation()["ready"] == 2
    assert house.lease(1) is None
    assert house.sampler.conservation()["stale"] == 2


def test_tokens_of_groups_that_became_stale_are_counted_once() -> None:
    house = House("fifo", groups=2, bound=0)
    for ticket in house.sampler.admit(2, 0):
        house.sampler.close(dataclasses.replace(result(ticket), tokens=70))
    assert "burned_tokens/stale" not in house.sampler.metrics()
    house.versions.issue(1)
    assert house.lease(1) is None
    assert house.sampler.metrics()["burned_tokens/stale"] == 140
    assert "burned_tokens/stale" not in house.sampler.metrics()


def test_a_lease_is_settled_or_released_once() -> None:
    house = House("fifo", groups=2, bound=0)
    house.fill(2)
    lease = house.lease(0)
    house.sampler.settle(lease)
    with pytest.raises(ConflictError, match="lease trainer/0 is not held: it was settled or released"):
        house.sampler.settle(lease)
    with pytest.raises(ConflictError, match="not held any more"):
        house.sampler.release(lease, "late")
    assert house.lease(0) == lease
    assert house.sampler.conservation()["trained"] == 2


def test_the_sweep_looks_at_the_step_that_will_be_trained() -> None:
    """With a lease in flight the next one is trained a step later than the newest weights say."""
    house = House("ready_first", groups=1, bound=1)
    slow, fast = house.sampler.admit(2, 0)
    house.close(fast)
    house.train(0)
    house.close(house.sampler.admit(1, 1)[0])
    assert house.lease(1) is not None
    house.close(slow)  # would be trained at step 2, with weights of step 0
    assert house.lease(2) is None
    assert house.sampler.conservation()["stale"] == 1


def test_a_lease_that_went_ahead_with_fewer_groups_is_a_step_and_is_not_filled_up() -> None:
    house = House("fifo", groups=4, bound=1)
    house.fill(3)
    assert house.sampler.lease("trainer", 0, 3, 0) is not None
    assert len(house.sampler.admit(100, 0)) == 4  # of two steps' places those of the second
    house.versions.issue(1)
    assert house.sampler.admit(100, 1) == []


# --- gauges --------------------------------------------------------------------------------------


def test_metrics_split_the_lag_at_arrival() -> None:
    house = House("fifo", groups=2, bound=3)
    tickets = house.sampler.admit(6, 0)
    for ticket in tickets[:3]:
        house.close(ticket)
    house.train(0)
    house.close(tickets[3], taskset="b")
    house.close(tickets[4], kept=False)
    house.close(tickets[5], "failed")
    assert house.sampler.metrics()["queue_age_max"] == 1
    house.train(1)
    found = house.sampler.metrics()
    assert {k: v for k, v in found.items() if k.startswith("lag")} == {
        "lag_mean": 0.5,
        "lag_max": 1.0,
        "lag/1": 2.0,
        "lag_in_flight/0": 1.0,
        "lag_in_flight/1": 1.0,
        "lag_in_queue/0": 1.0,
        "lag_in_queue/1": 1.0,
    } | {"lag_mean": 1.0}
    assert found["dropped/filter"] == found["dropped/failed"] == 1.0
    assert (found["dispatched/a"], found["dispatched/b"]) == (5.0, 1.0)
    assert (found["trained/a"], found["trained/b"]) == (3.0, 1.0)
    assert found["outstanding"] == found["queue_age_mean"] == 0.0
    assert not any(name.startswith("lag") for name in house.sampler.metrics()), "lags start anew"


def test_ages_are_counted_from_the_arrival_of_the_groups_that_wait() -> None:
    house = House("fifo", groups=3, bound=9)
    tickets = house.sampler.admit(9, 0)
    groups = LeasableGroups()
    assert groups.ages(4) == (0.0, 0.0)
    one, two, other, last = [
        Candidate(result(ticket), i, i, step, arrived)
        for i, (ticket, step, arrived) in enumerate(zip(tickets, (0, 0, None, 2), (1, 1, 0, 3), strict=False))
    ]
    for candidate in (one, two, other, last):
        groups.add(candidate)
    assert groups.ages(4) == (pytest.approx(7 / 3), 3.0)  # a group of another run has no age
    for candidate in (one, other):
        groups.remove(candidate)
    assert groups.ages(4) == (2.0, 3.0)
    groups.remove(two)
    assert groups.ages(5) == (2.0, 2.0)
    groups.remove(last)
    assert groups.ages(5) == (0.0, 0.0)


def test_trained_against_dispatched_survives_a_restart() -> None:
    house = House("fifo", groups=2, bound=3)
    house.fill(4)
    house.train(0)
    before = {
        k: v for k, v in house.sampler.metrics().items() if k.split("/")[0] in ("trained", "dispatched")
    }
    house.start(settled_steps=1)
    assert before == {"dispatched/a": 4.0, "trained/a": 2.0}
    assert before.items() <= house.sampler.metrics().items()


def test_ticket_of_another_kind_of_group_id_is_not_this_runs_own() -> None:
    house = House("fifo", history=[result(Ticket("run/expert-0f", 0, 0))])
    assert house.sampler.outstanding == 0
    assert house.sampler.admitted == 0
