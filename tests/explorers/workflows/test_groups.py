"""Groups of a scripted workflow on a scripted engine: deadlines, retries, over-rollout, salvage."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorers.limits import Limits, recipe_limits
from explorers.meter import Meter, MeteredEngine
from explorers.plan import GroupPlan
from explorers.rewards.rules import ExactAnswer
from explorers.rewards.scoring import Rewards
from explorers.workflows.groups import GroupPlayer, together
from explorers.workflows.rollouts import Rollouts, described
from rft_data.core.engine import Sampling
from rft_data.core.errors import EngineError, ParityError, RecipeError
from rft_data.core.groups import Group, Ticket
from rft_data.core.masking import hide
from rft_data.core.rows import Experience, Task, WeightRef, experience_id_of
from rft_data.core.words import ROLLOUT_SECONDS
from rft_data.core.workflow import Unscored
from tests.explorers.toys import ScriptedEngine, ScriptedWorkflow, task

T = TypeVar("T")
GREEDY = Sampling(8, 0.0)


@pytest.fixture(scope="module", autouse=True)
def quick_retries() -> Iterator[None]:
    """A retry comes well within the short deadlines here, on a busy machine too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("explorers.workflows.rollouts._BACKOFF_S", 0.02)
        yield


class House:
    """A group player with its parts at hand."""

    def __init__(self, *, group_size: int = 3, greedy_member: bool = False, **limits: Any) -> None:
        self.meter = Meter()
        self.numbers: dict[str, float] = {}
        self.aborted = 0
        self.engine = ScriptedEngine(Path())
        self.engine.load_weights(WeightRef("run", 4, 0, ""))
        self.workflow = ScriptedWorkflow(None, Rewards({"exact": 1.0}, {"exact": ExactAnswer()}))
        bounds = Limits(**limits)
        rollouts = Rollouts(MeteredEngine(self.engine, self.meter), self.workflow, bounds, self.meter)
        self.player = GroupPlayer(
            rollouts,
            GroupPlan(
                run_id="run",
                attempt=2,
                explorer_id="e0",
                size=group_size,
                sampling=Sampling(8, 0.7),
                limits=bounds,
                greedy_member=greedy_member,
            ),
            self.meter,
        )

    def play(self, *tasks: Task) -> list[Group]:
        """One group per task. What was counted is noted inside the loop, whose end cancels what is left."""

        async def played() -> list[Group]:
            try:
                tickets = [Ticket(f"g{n}", n, 4) for n in range(len(tasks))]
                return await together([self.player.play(*one) for one in zip(tickets, tasks, strict=True)])
            finally:
                self.numbers, self.aborted = self.meter.take(), self.engine.aborted

        return run(played())


def run(work: Coroutine[Any, Any, T]) -> T:
    """To its end, within 20 seconds, on a loop that complains of nothing."""
    problems: list[Any] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        return await asyncio.wait_for(work, 20)

    try:
        return asyncio.run(watched())
    finally:
        assert problems == []


@pytest.mark.slow
def test_a_group_has_its_members_in_order_under_names_that_repeat() -> None:
    first, second = House().play(task("ok"), task("steps", "ok", name="u"))
    assert [(g.outcome, g.error) for g in (first, second)] == [("arrived", "")] * 2
    assert [(row.member, row.turn) for row in first.experiences] == [(0, 0), (1, 0), (2, 0)]
    assert [(row.member, row.turn) for row in second.experiences] == [(0, 0), (0, 1), (1, 0), (2, 0)]
    row = second.experiences[1]
    assert row.experience_id == experience_id_of("run", second.task.key, 2, "g1", 0, 1)
    assert [r.experience_id for g in House().play(task("ok")) for r in g.experiences] == [
        r.experience_id for r in first.experiences
    ]


def test_the_greedy_member_alone_is_decoded_greedily() -> None:
    house, asked = House(greedy_member=True), []
    play = house.workflow.run

    async def listening(one: Task, engine: Any, ctx: Any) -> list[Experience]:
        asked.append((ctx.member, ctx.sampling.temperature))
        return await play(one, engine, ctx)

    house.workflow.run = listening  # type: ignore[method-assign]
    [group] = house.play(task("ok"))
    assert group.outcome == "arrived"
    assert sorted(asked) == [(0, 0.0), (1, 0.7), (2, 0.7)]


def test_a_group_waits_for_its_greedy_member_and_fails_without_it() -> None:
    house = House(greedy_member=True, extra=2, min_members=1, retries=1)
    late, lost = house.play(task("flaky", "ok"), task("fail", "ok", name="u"))
    assert late.experiences[0].member == 0
    assert len(late.experiences) == 3
    assert (lost.outcome, lost.error) == ("failed", "1 of 5: ZeroDivisionError: no such sum")


def test_a_rollout_that_raises_fails_its_group_and_no_other() -> None:
    groups = House().play(task("ok"), task("ok", "fail", name="u"), task("ok", name="v"))
    assert [g.outcome for g in groups] == ["arrived", "failed", "arrived"]
    assert groups[1].error == "2 of 3: ZeroDivisionError: no such sum"
    assert [row.member for row in groups[1].experiences] == [0]
    assert len(groups[2].experiences) == 3


@pytest.mark.slow
def test_a_hung_rollout_is_cancelled_at_its_deadline_and_its_request_aborted() -> None:
    house = House(rollout_deadline_s=0.3)
    hung, well = house.play(task("ok", "hang", "ok"), task("ok", name="u"))
    assert (hung.outcome, well.outcome, house.aborted) == ("failed", "arrived", 1)
    assert hung.error.startswith("1 of 3: TimeoutError: the rollout took longer than 0.3 s and was cancelled")
    assert [row.member for row in hung.experiences] == [0, 2]
    assert house.numbers["rollouts_failed"] == 1


@pytest.mark.slow
def test_a_rollout_that_ignores_its_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    (group,) = House(group_size=1, rollout_deadline_s=0.2).play(task("deaf"))
    assert (group.outcome, group.experiences) == ("failed", ())
    assert "a workflow (ScriptedWorkflow) did not end when it was cancelled" in caplog.text


@pytest.mark.parametrize(
    ("act", "error"),
    [
        ("exit", "RuntimeError: the workflow called sys.exit(4)"),
        ("cancel", "RuntimeError: the workflow cancelled itself"),
        ("alien", "RowError: the workflow named an experience ('x', 'run', 'g0', 0, 'rollout')"),
        ("nothing", "RowError: the workflow returned '[]'; wanted a list of experiences, at least one."),
        ("text", "RowError: the workflow returned 'rows'; wanted a list of experiences, at least one."),
        (
            "twice",
            "RowError: the workflow returned 2 experiences with the turns [0, 0]; wanted each turn once.",
        ),
    ],
)
def test_whatever_a_workflow_does_is_a_failed_rollout(act: str, error: str) -> None:
    (group,) = House(group_size=1).play(task(act))
    assert group.outcome == "failed"
    assert group.error.startswith(f"1 of 1: {error}")


def test_a_transient_failure_is_played_again_and_another_is_not() -> None:
    house = House(retries=2)
    flaky, down, failing = house.play(task("flaky"), task("down", name="u"), task("fail", name="v"))
    assert (flaky.outcome, len(flaky.experiences)) == ("arrived", 3)
    assert down.error == "3 of 3: ConnectionError: the environment is away"
    assert [house.workflow.tries[group, 0] for group in ("g0", "g1", "g2")] == [2, 3, 1]
    assert failing.outcome == "failed"
    numbers = house.numbers
    assert numbers["rollouts_retried"] == 3 * 1 + 3 * 2
    assert (numbers["rollouts_started"], numbers["rollouts_arrived"], numbers["rollouts_failed"]) == (9, 3, 6)


@pytest.mark.slow
def test_retries_share_the_deadline_of_their_rollout() -> None:
    house = House(group_size=1, retries=1000, rollout_deadline_s=0.5)
    (group,) = house.play(task("down"))
    assert group.outcome == "failed"
    assert house.workflow.tries["g0", 0] < 10


def test_extra_members_stand_in_for_the_slow_and_the_failed() -> None:
    house = House(extra=2, rollout_deadline_s=30.0)
    (group,) = house.play(task("fail", "ok", "hang", "ok", "ok"))
    assert (group.outcome, group.error) == ("arrived", "")
    assert [row.member for row in group.experiences] == [1, 3, 4]
    assert house.aborted == 1
    numbers = house.numbers
    counted = ("started", "arrived", "failed", "cancelled")
    assert [numbers[f"rollouts_{name}"] for name in counted] == [5, 3, 1, 1]


def test_no_more_members_are_kept_than_a_group_has() -> None:
    house = House(extra=3)
    (group,) = house.play(task("ok"))
    assert [row.member for row in group.experiences] == [0, 1, 2]
    numbers = house.numbers
    assert numbers["rollouts_surplus"] + numbers["rollouts_cancelled"] == 3


def test_a_group_that_lost_members_arrives_when_enough_are_left() -> None:
    house = House(min_members=2)
    enough, too_few = house.play(task("ok", "fail", "ok"), task("fail", "fail", "ok", name="u"))
    assert (enough.outcome, enough.error, len(enough.experiences)) == ("arrived", "", 2)
    assert (too_few.outcome, len(too_few.experiences)) == ("failed", 1)
    assert house.numbers["groups_salvaged"] == 1


def test_an_engine_that_breaks_down_ends_everything_at_once() -> None:
    house = House()
    with pytest.raises(EngineError, match="the engine is gone"):
        house.play(task("hang"), task("ok", "broken", name="u"))
    assert house.aborted >= 3
    numbers = house.numbers
    ended = sum(numbers[f"rollouts_{name}"] for name in ("arrived", "failed", "cancelled"))
    assert numbers["rollouts_started"] == ended == 6


def test_an_engine_without_proven_weights_serves_nothing() -> None:
    house = House()
    house.engine._version = None
    with pytest.raises(ParityError, match="no proven weights"):
        house.play(task("ok"))


def burned(numbers: dict[str, float]) -> dict[str, float]:
    """Tokens by cause."""
    return {key.partition("/")[2]: n for key, n in numbers.items() if key.startswith("burned_tokens/")}


def test_tokens_that_were_for_nothing_are_counted_by_cause() -> None:
    house = House(extra=2, rollout_deadline_s=30.0)
    house.play(task("steps", "fail", "ok", "ok", "hang"))
    assert burned(house.numbers) == {"cancelled": house.engine.HUNG}  # two rows of `steps`, one of each `ok`
    assert (house.numbers["tokens"], house.numbers["kept_tokens"]) == (3 * 4 + 2, 3 * 4)
    assert house.numbers["burned_s/cancelled"] > 0
    assert house.numbers["burned_s/failed"] >= 0
    house.play(task("ok"))
    assert burned(house.numbers) == {"surplus": 6}


def test_a_hung_request_counts_as_timed_out_and_its_good_fellows_as_a_failed_group() -> None:
    house = House(rollout_deadline_s=0.1)
    house.play(task("ok", "hang", "ok"))
    assert burned(house.numbers) == {"timeout": house.engine.HUNG, "group_failed": 6}
    assert house.numbers["burned_s/timeout"] >= 0.1
    assert house.numbers["kept_tokens"] == 0
    assert "kept_length_ratio" not in house.numbers


def test_what_an_attempt_had_sampled_before_a_retry_is_counted() -> None:
    house = House(group_size=1, retries=1)
    play = house.workflow.run

    async def late_failure(one: Task, engine: Any, ctx: Any) -> list[Experience]:
        rows = await play(one, engine, ctx)
        if house.workflow.tries[ctx.group_id, ctx.member] == 1:
            raise ConnectionError("the environment is away")
        return rows

    house.workflow.run = late_failure  # type: ignore[method-assign]
    house.play(task("ok"))
    assert (burned(house.numbers), house.numbers["kept_tokens"]) == ({"retried": 3}, 3)


def test_an_evaluation_that_fails_is_counted_and_changes_no_length() -> None:
    house = House(rollout_deadline_s=0.1)
    run(house.player.answer(task("hang"), "end", 0, GREEDY))
    run(house.player.answer(task("ok"), "end", 0, GREEDY))
    numbers = house.meter.take()
    assert (burned(numbers), numbers["kept_tokens"]) == ({"timeout": house.engine.HUNG}, 3)
    assert "kept_length_ratio" not in numbers


def test_an_engine_that_breaks_down_leaves_no_rollout_out_of_the_ledger() -> None:
    house = House()
    with pytest.raises(EngineError, match="the engine is gone"):
        house.play(task("hang"), task("ok", "broken", name="u"))
    assert sum(burned(house.numbers).values()) == house.numbers["tokens"]
    assert house.numbers["burned_s/failed"] >= 0
    assert house.numbers["kept_tokens"] == 0


def test_a_failed_answer_is_a_row_with_the_reason() -> None:
    house = House()
    (good,) = run(house.player.answer(task("ok"), "end", 0, GREEDY))
    (bad,) = run(house.player.answer(task("fail"), "end", 0, GREEDY))
    assert (good.source, good.member, good.reward) == ("eval", 0, 0.0)
    assert (bad.source, bad.token_ids, bad.group_id) == ("eval", None, f"end-{task('fail').task_id}")
    assert bad.unscored_reason == "rollout failed: ZeroDivisionError: no such sum"


ACTS = ("ok", "fail", "flaky", "down", "steps", "exit", "hang")


@pytest.mark.slow
@settings(max_examples=20)
@given(
    scripts=st.lists(st.lists(st.sampled_from(ACTS), min_size=1, max_size=6), min_size=1, max_size=4),
    group_size=st.integers(1, 4),
    extra=st.integers(0, 2),
    least=st.integers(1, 4),
)
def test_every_rollout_is_accounted_for_and_every_group_is_whole_or_failed(
    scripts: list[list[str]], group_size: int, extra: int, least: int
) -> None:
    least = min(least, group_size)
    house = House(group_size=group_size, extra=extra, min_members=least, retries=1, rollout_deadline_s=0.7)
    groups = house.play(*(task(*script, name=str(n)) for n, script in enumerate(scripts)))
    for script, group in zip(scripts, groups, strict=True):
        acts = [script[min(n, len(script) - 1)] for n in range(group_size + extra)]
        good = sum(act in ("ok", "flaky", "steps") for act in acts)
        members = {row.member for row in group.experiences}
        assert (group.outcome == "arrived") == (good >= least)
        assert len(members) == min(good, group_size)
        assert all(acts[member] in ("ok", "flaky", "steps") for member in members)
        wanted = sum(2 if acts[member] == "steps" else 1 for member in members)
        assert len({row.experience_id for row in group.experiences}) == len(group.experiences) == wanted
    numbers = house.numbers
    started = len(scripts) * (group_size + extra)
    ended = sum(numbers[f"rollouts_{name}"] for name in ("arrived", "failed", "cancelled"))
    assert numbers["rollouts_started"] == ended == started
    fates = [value for key, value in numbers.items() if key.startswith("burned_tokens/")]
    assert numbers["tokens"] == numbers["kept_tokens"] + sum(fates)
    kept = sum(len({row.member for row in group.experiences}) for group in groups)
    assert numbers["rollouts_arrived"] == kept + numbers["rollouts_surplus"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"retires": 1}, "explorer.limits.retires is not a limit; did you mean 'retries'?"),
        ({"retries": -1}, "explorer.limits.retries is -1; wanted a whole number, 0 or more"),
        ({"extra": 0.5}, "explorer.limits.extra is 0.5; wanted a whole number"),
        ({"retries": True}, "explorer.limits.retries is True; wanted a whole number"),
        ({"min_members": 0}, "explorer.limits.min_members is 0; wanted a whole number, 1 or more"),
        (
            {"min_members": 5},
            "explorer.limits.min_members is 5; wanted at most explorer.group_size, which is 4",
        ),
        (
            {"reward_deadline_s": 0},
            "explorer.limits.reward_deadline_s is 0; wanted a number of seconds above 0",
        ),
        (
            {"rollout_deadline_s": "9"},
            "explorer.limits.rollout_deadline_s is '9'; wanted a number of seconds",
        ),
    ],
)
def test_limits_out_of_their_range_are_refused_by_name(given: dict[str, Any], match: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe_limits(given, group_size=4)
    assert match in str(refused.value)


def test_the_last_row_of_a_rollout_says_where_its_seconds_went() -> None:
    group, other = House().play(task("steps", "ok"), task("ok", name="u"))
    for rows in ([row for row in one.experiences if row.member == 0] for one in (group, other)):
        assert [row.turn for row in rows] == list(range(len(rows)))
        assert all(ROLLOUT_SECONDS not in row.metadata for row in rows[:-1])
        spent = rows[-1].metadata[ROLLOUT_SECONDS]
        assert {"all", "generating"} <= spent.keys()
        assert 0 <= spent["generating"] <= spent["all"]


def test_errors_that_are_stored_show_no_value_from_the_environment() -> None:
    hide({"${env:RFT_CANARY}": "canary-of-42-birds"})
    assert described(RuntimeError("401: canary-of-42-birds")) == "RuntimeError: 401: ${env:RFT_CANARY}"
    assert Unscored("the judge said: canary-of-42-birds").reason == "the judge said: ${env:RFT_CANARY}"
