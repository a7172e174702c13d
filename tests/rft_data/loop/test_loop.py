"""The loop with every hub part real; engine and optimizer are the small roles of `toy_run`."""

import contextlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rft_data.core.errors import (
    EngineError,
    IntegrityError,
    RftError,
    RoleDiedError,
    StalledError,
    Stopped,
    TrainingError,
)
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.roles import RoleSpec
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.online import Schedule
from rft_data.loop.shared_gpus import SharedGpus
from rft_data.sampler.conservation import check_conservation
from rft_data.sampler.ledger import CONSUMER
from rft_data.tasks.selectors import Shuffle
from tests.rft_data.loop.toy_run import TASKS
from tests.rft_data.loop.whole_run import TOY, WholeRun


class Crash(BaseException):
    """What a kill looks like from inside."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"every": 2, "staleness": 1},
        {"staleness": 2},
        {"failing": True},
        {"groups": 3, "every": 3, "staleness": 2},
    ],
    ids=str,
)
def test_loop_trains_every_step_and_keeps_its_books(tmp_path: Path, settings: dict) -> None:
    house = WholeRun(tmp_path, 0, **settings)
    house.loop.run()
    house.check()
    assert len(house.staleness) == 6 * settings.get("groups", 2)
    assert max(house.staleness) <= settings.get("staleness", 0)
    assert house.versions.latest == 6
    assert len(house.trained()) == 6
    house.close()


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_engines_and_the_trainer_on_their_gpus_sleep_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Also an engine that died after its last group was stored, and is up again only after a while."""
    house, called = WholeRun(tmp_path, 0, steps=2, rule="two"), list[str]()
    house.loop.shared_gpus = SharedGpus(house.loop.exploring.fleet, house.loop.training, 60)
    explorer, again = house.explorer, house.explorer.restart
    for role in (explorer, house.trainer):

        def noted(method: str, *args: Any, call: Any = role.call, name: str = role.name, **more: Any) -> Any:
            called.append(f"{name}.{method}" if name == "trainer" and method in ("sleep", "wake") else method)
            done = call(method, *args, **more)
            if dies and called.count("explore") == 2 and method == "explore":
                explorer.close()
                done = Future[Any]()
                done.set_exception(RoleDiedError("it died"))
            return done

        monkeypatch.setattr(role, "call", noted)

    def slow_restart() -> Future[None]:
        started = Future[None]()
        threading.Timer(0.1, lambda: started.set_result(again().result())).start()
        return started

    monkeypatch.setattr(explorer, "restart", slow_restart)
    house.loop.run()
    house.check()
    house.close()
    said = [name for name in called if name not in ("metrics", "close")]
    published = ["save_weights", "trainer.sleep", "wake", "load_weights"]
    one_step = ["explore", "sleep", "trainer.wake", "step", *published]
    second = ["explore", "load_weights", *one_step[1:]] if dies else one_step
    assert said == [*published, *one_step, *second]


@pytest.mark.slow
def test_a_stop_wakes_the_trainer_for_its_checkpoint(tmp_path: Path) -> None:
    house = WholeRun(tmp_path, 0, steps=6, rule="two")
    house.loop.shared_gpus = SharedGpus(house.loop.exploring.fleet, house.loop.training, 60)
    house.loop.stop_requested = lambda: house.loop.step == 1
    with pytest.raises(Stopped, match="stopped at step 1 of 6"):
        house.loop.run()
    assert (house.loop.checkpoints / "checkpoint-1" / "trained.txt").is_file()
    house.close()


def crash_points() -> list[tuple[str, str]]:
    """Every write a step makes, by the object that makes it."""
    return [
        ("buffer", "append"),
        ("buffer", "annotate"),
        ("buffer", "add_rows"),
        ("explorer", "call"),
        ("dispatcher", "assign"),
        ("sampler", "lease"),
        ("trainer", "call"),
        ("sampler", "settle"),
        ("versions", "draft"),
        ("versions", "finish"),
        ("ledger", "consume"),
        ("loop", "seal"),
    ]


def crash_at(
    house: WholeRun, point: tuple[str, str], when: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die at the call-th call of a method, before or after it does its work."""
    target = house.loop if point[0] == "loop" else getattr(house, point[0])
    original, calls = getattr(target, point[1]), iter(range(1, 10_000))

    def dying(*args, **kwargs):
        crash = next(calls) == call
        if crash and when == "before":
            raise Crash
        result = original(*args, **kwargs)
        if crash:
            raise Crash
        return result

    monkeypatch.setattr(target, point[1], dying)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What an uninterrupted synchronous run trains."""
    house = WholeRun(tmp_path_factory.mktemp("straight"), 0, failing=True)
    house.loop.run()
    house.close()
    return house.trained()


@pytest.mark.slow
@pytest.mark.parametrize("point", crash_points(), ids="-".join)
def test_a_synchronous_run_killed_at_any_write_trains_exactly_what_a_straight_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: list[str], point: tuple[str, str]
) -> None:
    for attempt, (call, when) in enumerate(((2, "before"), (5, "after"), (1, "after"), (1, "before"))):
        house = WholeRun(tmp_path, attempt, failing=True)
        crash_at(house, point, when, call, monkeypatch)
        try:
            house.loop.run()
        except Crash:
            house.close()
            continue
        house.check()
        house.close()
    final = WholeRun(tmp_path, 4, failing=True)
    final.loop.run()
    final.check()
    final.close()
    assert final.trained() == straight


@pytest.mark.slow
@pytest.mark.parametrize("point", crash_points(), ids="-".join)
def test_an_asynchronous_run_killed_after_any_write_keeps_its_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, str]
) -> None:
    for attempt, call in enumerate((2, 5, 1)):
        house = WholeRun(tmp_path, attempt, staleness=2, every=2)
        crash_at(house, point, "after", call, monkeypatch)
        with contextlib.suppress(Crash):
            house.loop.run()
        house.close()
    final = WholeRun(tmp_path, 3, staleness=2, every=2)
    final.loop.run()
    final.check()
    assert max(final.staleness, default=0) <= 2
    final.close()


@pytest.mark.slow
def test_loop_goes_ahead_with_the_groups_it_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = WholeRun(tmp_path, 0, rule="one", steps=1)
    house.loop.schedule = Schedule(1, 2, 1, checkpoint_every=3, max_explored_per_step=24)
    house.loop.run()
    house.check()
    assert "goes ahead with 1 of 2 groups" in caplog.text
    house.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "kind", "exit_code", "message"),
    [
        (False, TrainingError, 1, r"\(groups of the run: 8 dropped\); the operators drop every group"),
        (
            True,
            StalledError,
            75,
            r"\(groups of the run: \d+ dropped, \d+ failed\); rollouts fail, the last with: 1 of 2: boom",
        ),
    ],
)
def test_loop_says_why_nothing_can_be_trained(
    tmp_path: Path, failing: bool, kind: type[RftError], exit_code: int, message: str
) -> None:
    house = WholeRun(tmp_path, 0, rule="same", failing=failing)
    with pytest.raises(kind, match=message) as caught:
        house.loop.run()
    assert caught.value.exit_code == exit_code, "a retry would cure failed rollouts, never strict operators"
    house.close()


@pytest.mark.slow
def test_conservation_check_finds_a_book_that_lies(tmp_path: Path) -> None:
    house = WholeRun(tmp_path, 0)
    house.loop.run()
    counts = house.sampler.conservation()
    for state in ("trained", "dropped", "admitted", "failed"):
        with pytest.raises(IntegrityError, match="not conserved"):
            check_conservation(house.buffer, house.ledger, CONSUMER, {**counts, state: counts[state] + 1}, 6)
    with pytest.raises(IntegrityError, match="steps consumed: 7 and 6"):
        check_conservation(house.buffer, house.ledger, CONSUMER, counts, 7)
    house.close()


@pytest.mark.slow
def test_a_run_asked_to_stop_ends_at_a_checkpoint_and_goes_on_from_it(
    tmp_path: Path, straight: list[str]
) -> None:
    house = WholeRun(tmp_path, 0, failing=True, checkpoint_every=100)
    house.loop.stop_requested = lambda: house.loop.step == 2
    with pytest.raises(Stopped, match="step 2 of 6"):
        house.loop.run()
    house.close()
    assert (tmp_path / "checkpoints" / "checkpoint-2" / "manifest.json").is_file()
    again = WholeRun(tmp_path, 1, failing=True)
    assert again.loop.step == 2
    again.loop.run()
    again.check()
    again.close()
    assert again.trained() == straight


@pytest.mark.slow
def test_an_explorer_that_dies_again_and_again_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = WholeRun(tmp_path, 0, rule="broken")
    with pytest.raises(EngineError, match="the engine is gone"):
        house.loop.run()
    assert house.explorer.incarnation == 3
    assert caplog.text.count("explorer-0 is started again (2 groups lost)") == 3
    assert house.sampler.conservation()["cancelled"] == 6
    house.close()


def test_a_task_that_was_lost_is_played_again_before_others_and_given_up_the_next_time() -> None:
    dispatcher = Dispatcher(Shuffle(TASKS, seed=0), {task.key: task for task in TASKS})
    tickets = [Ticket(f"run/0-{i:08d}", i, 0) for i in range(4)]
    [lost] = dispatcher.assign(tickets[:1])
    dispatcher.give_back([lost.task.key])
    again, other = dispatcher.assign(tickets[1:3])
    assert again.task == lost.task
    assert other.task != lost.task
    restored = Dispatcher(Shuffle(TASKS, seed=0), dispatcher.tasks)
    restored.selector.load_state_dict(dispatcher.selector.state_dict())
    restored.load_state_dict(json.loads(json.dumps(dispatcher.state_dict())))
    for one in (dispatcher, restored):
        one.give_back([lost.task.key])
        assert one.assign(tickets[3:])[0].task != lost.task, "a third chance"


@pytest.mark.slow
def test_a_step_that_fails_is_not_settled(tmp_path: Path) -> None:
    house = WholeRun(tmp_path, 0)
    poisoned = {**house.trainer._spec.arguments, "poisoned": 2}
    house.trainer._spec = RoleSpec("trainer", f"{TOY}:trainer_role", poisoned)
    house.trainer.restart().result()
    with pytest.raises(TrainingError, match="the loss is nan"):
        house.loop.run()
    assert house.sampler.conservation()["trained"] == 4
    house.close()
    again = WholeRun(tmp_path, 1)
    again.loop.run()
    again.check()
    again.close()


class Listening(Shuffle):
    """Remembers which groups it was told of."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.heard: list[str] = []

    def observe(self, results: Sequence[GroupResult]) -> None:
        self.heard += [result.ticket.group_id for result in results]


@pytest.mark.slow
def test_a_group_that_comes_home_past_the_bound_teaches_the_selector_nothing(tmp_path: Path) -> None:
    house = WholeRun(tmp_path, 0, groups=4)
    house.dispatcher.selector = listening = Listening(TASKS, seed=0)
    house.loop.publish_first()
    exploring = house.loop.exploring
    exploring.start(2)
    exploring.collect()
    in_time = list(listening.heard)
    exploring.start(2)
    house.versions.issue(1)
    exploring.collect()
    assert (exploring.closed, len(in_time), listening.heard) == (4, 2, in_time)
    house.close()
