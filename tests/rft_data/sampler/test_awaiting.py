"""Groups that wait for rewards: which, until when, and how feedback is noticed."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.groups import Played, Ticket
from rft_data.core.rows import Feedback, TaskKey, now
from rft_data.exchange.feedback import withdrawal
from rft_data.placement.hub import HubClient, HubServer
from rft_data.sampler import awaiting as module
from rft_data.sampler.awaiting import Awaiting, Delayed, missing_rewards
from tests.rft_data.conftest import make_experience

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
WAIT_S = 3600.0
KEY = TaskKey("arith", "t0")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time, in seconds after noon."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(module, "now", lambda: NOON + timedelta(seconds=seconds))

    set_to(0)
    return set_to


def name_of(group: int, member: int) -> str:
    return f"e{group}-{member}"


def played(buffer: Buffer, group: int, rewards: list[float | None], **changes: Any) -> Played:
    """A group at home, made at noon, one rollout for each reward."""
    rows = [
        make_experience(
            experience_id=name_of(group, member),
            group_id=f"run/0-{group:08d}",
            member=member,
            reward=reward,
            created_at=NOON,
            **changes,
        )
        for member, reward in enumerate(rewards)
    ]
    seqs = tuple(buffer.append(rows).seqs)
    return Played(Ticket(f"run/0-{group:08d}", group, 3), KEY, "arrived", seqs, len(rows))


def reward(group: int, member: int, value: float | None = 1.0, key: str = "reward") -> Feedback:
    return Feedback(name_of(group, member), "grader", key, value)


@pytest.mark.slow
def test_a_group_waits_until_each_missing_reward_has_come(buffer: Buffer, clock: Any) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    late, known = played(buffer, 0, [None, 0.5, None]), played(buffer, 1, [1.0, 0.0])
    assert awaiting.sift([late, known]) == [known]
    assert len(awaiting) == 1
    buffer.add_feedback([reward(0, 0)])
    assert awaiting.sift([]) == []
    buffer.add_feedback([reward(0, 2, 0.25), reward(1, 0, 0.0)])
    assert awaiting.sift([]) == [late]
    assert len(awaiting) == 0
    rows = awaiting.with_rewards(buffer.take([*late.seqs, *known.seqs]))
    assert rows.column("reward").to_pylist() == [1.0, 0.5, 0.25, 1.0, 0.0], "what is known stays"
    assert awaiting.sift([]) == [], "a group is handed out once"


@pytest.mark.slow
def test_feedback_that_came_before_the_group_is_found(buffer: Buffer, clock: Any) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    late = played(buffer, 0, [None])
    buffer.add_feedback([reward(0, 0)])
    assert awaiting.sift([late]) == [late]


@pytest.mark.slow
def test_words_another_key_and_what_was_withdrawn_are_no_reward(buffer: Buffer, clock: Any) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    assert awaiting.sift([played(buffer, 0, [None])]) == []
    rated = replace(reward(0, 0), created_at=now())
    for said in (
        [reward(0, 0, key="score")],
        [Feedback(name_of(0, 0), "grader", "reward", None, "well done")],
        [rated, withdrawal(rated, 1)],
    ):
        buffer.add_feedback(said)
        assert awaiting.sift([]) == []


@pytest.mark.slow
def test_a_group_is_judged_without_its_rewards_when_it_has_waited_long_enough(
    buffer: Buffer, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    late = played(buffer, 0, [None, None])
    clock(WAIT_S / 2)
    assert awaiting.sift([late]) == []
    clock(WAIT_S - 1)
    assert awaiting.sift([]) == []
    clock(WAIT_S)
    with caplog.at_level(logging.WARNING):
        assert awaiting.sift([]) == [late]
    assert "rewards of 1 groups did not arrive within 3600 s (first group: 'run/0-00000000')" in caplog.text
    assert awaiting.with_rewards(buffer.take(late.seqs)).column("reward").to_pylist() == [None, None]


@pytest.mark.slow
def test_no_group_waits_longer_than_told_for_a_clock_that_was_ahead(buffer: Buffer, clock: Any) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    clock(-86_400)  # the explorer's is a day ahead of ours
    late = played(buffer, 0, [None])
    assert awaiting.sift([late]) == []
    clock(-86_400 + WAIT_S)
    assert awaiting.sift([]) == [late]


@pytest.mark.slow
def test_groups_that_can_have_no_reward_do_not_wait(buffer: Buffer, clock: Any) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    unscored = played(buffer, 0, [None], unscored_reason="the reward function failed")
    stored = played(buffer, 1, [None, None])
    torn = Played(stored.ticket, KEY, "arrived", stored.seqs, 3)
    failed = Played(stored.ticket, KEY, "failed", stored.seqs, 2, "boom")
    assert awaiting.sift([unscored]) == [unscored]
    assert awaiting.sift([torn]) == [torn]
    assert awaiting.sift([failed]) == [failed]
    rows = buffer.take(unscored.seqs)
    buffer.add_feedback([reward(0, 0)])
    assert awaiting.with_rewards(rows).column("reward").to_pylist() == [None], "it has a reason for none"


def test_of_several_turns_the_last_one_needs_the_reward() -> None:
    def turn(member: int, number: int, value: float | None) -> dict[str, Any]:
        name = f"{member}/{number}"
        return {
            "experience_id": name,
            "member": member,
            "turn": number,
            "reward": value,
            "unscored_reason": None,
        }

    assert missing_rewards([turn(0, 1, 1.0), turn(0, 0, None), turn(1, 0, None), turn(1, 1, None)]) == ["1/1"]
    assert missing_rewards([]) == []


@pytest.mark.slow
def test_feedback_over_the_hub_ends_the_wait_and_is_stored_once(buffer: Buffer, clock: Any) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    late = played(buffer, 0, [None])
    assert awaiting.sift([late]) == []
    with HubServer(buffer) as hub, HubClient(hub.address, hub.token) as client:
        assert client.add_feedback([reward(0, 0, 0.5)]) == 1
        assert client.add_feedback([reward(0, 0, 0.5)]) == 0
    assert awaiting.sift([]) == [late]


@pytest.mark.slow
def test_a_look_reads_only_the_feedback_that_is_new(
    buffer: Buffer, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaiting = Awaiting(buffer, Delayed(WAIT_S))
    awaiting.sift([played(buffer, 0, [None]), played(buffer, 1, [1.0, 1.0])])
    buffer.add_feedback([reward(1, 0)])
    tails, reads = [], []
    tail, read = buffer.tail, buffer.read
    monkeypatch.setattr(buffer, "tail", lambda name, n, *rest: tails.append(n) or tail(name, n, *rest))
    monkeypatch.setattr(buffer, "read", lambda *args, **named: reads.append(args) or read(*args, **named))
    assert awaiting.sift([]) == [] == awaiting.sift([])
    assert (tails, reads) == ([1], []), "nobody who waits was spoken of"


Event = tuple[str, int, int]
EVENTS = st.lists(
    st.tuples(st.sampled_from(["home", "say", "withdraw", "later"]), st.integers(0, 3), st.integers(0, 1)),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=12)
@given(events=EVENTS)
def test_each_group_is_handed_out_once_when_its_rewards_are_there_or_its_time_is_over(
    events: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against the same rule over plain dicts; group 3 has its second reward from the start."""
    time, home, done, values, said_times = 0.0, {}, [], {}, 0
    with (
        Buffer(tmp_path_factory.mktemp("awaiting") / "buffer") as buffer,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(module, "now", lambda: NOON + timedelta(seconds=time))
        awaiting = Awaiting(buffer, Delayed(WAIT_S))
        groups = {g: played(buffer, g, [None, 1.0 if g == 3 else None]) for g in range(4)}
        for what, group, member in events:
            arriving = []
            if what == "home" and group not in home:
                home[group] = time
                arriving = [groups[group]]
            elif what == "later":
                time += 0.4 * WAIT_S
            elif what in ("say", "withdraw"):
                said_times += 1
                said = Feedback(
                    name_of(group, member),
                    "grader",
                    "reward",
                    float(said_times),
                    created_at=NOON + timedelta(seconds=said_times),
                )
                if what == "withdraw":
                    said = Feedback(
                        said.experience_id,
                        "grader",
                        "reward",
                        None,
                        f"rft:withdrawn {said_times}",
                        said.created_at,
                    )
                buffer.add_feedback([said])
                values[group, member] = said.value
            wanted = [
                g
                for g in sorted(home)
                if g not in done
                and (
                    time >= WAIT_S
                    or all(values.get((g, m)) is not None for m in ((0,) if g == 3 else (0, 1)))
                )
            ]
            found = [one.ticket.ordinal for one in awaiting.sift(arriving)]
            assert found == wanted
            done += found
            assert len(awaiting) == len(home) - len(done)
