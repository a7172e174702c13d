"""A run whose rewards come as feedback while it goes on: what it trains on, and what a kill leaves."""

import contextlib
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rft_data.core.errors import Stopped
from rft_data.core.rows import Feedback, now
from rft_data.loop import repeating
from rft_data.loop.closing import stored_groups
from rft_data.placement.hub import HubServer
from rft_data.sampler import awaiting as awaiting_module
from rft_data.sampler.conservation import Conservation, check_conservation, conservation
from rft_data.sampler.ledger import CONSUMER
from rft_data.tasks.selectors import Shuffle
from tests.rft_data.loop.test_loop import Crash, WholeRun, crash_at, crash_points
from tests.rft_data.loop.toy_run import SIZE, TASKS
from tests.template import FORK

WAIT_S = 3600.0


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "LOOK_S", 0.001)


class LateHouse(WholeRun):
    """A run in which the rewards of every other task come from a grader that looks every few collects."""

    def __init__(self, root: Path, attempt: int = 0, *, graded_every: int = 3, **settings: Any) -> None:
        super().__init__(root, attempt, rule="late", wait_s=WAIT_S, **{"staleness": 2, **settings})
        self.most = 0
        """Most groups that waited at a time."""
        exploring = self.loop.exploring
        collect, looks = exploring.collect, iter(range(1, 100_000))

        def collect_and_grade(missing: int = 0) -> None:
            collect(missing)
            self.most = max(self.most, exploring.waiting)
            if graded_every and next(looks) % graded_every == 0:
                self.grade()

        exploring.collect = collect_and_grade  # type: ignore[method-assign]

    def grade(self) -> None:
        """Say what the rollouts without a reward are worth: of the oldest group that nobody spoke of."""
        said = set(self.buffer.read("feedback", ["experience_id"]).column("experience_id").to_pylist())
        rows = self.buffer.read("experiences", ["experience_id", "group_id", "member", "reward"]).to_pylist()
        missing = [row for row in rows if row["reward"] is None and row["experience_id"] not in said]
        self.buffer.add_feedback(
            [
                Feedback(row["experience_id"], "grader", "reward", float(row["member"] == 0))
                for row in missing
                if row["group_id"] == missing[0]["group_id"]
            ]
        )

    def rows(self) -> Conservation:
        """The books, checked."""
        book = self.sampler.conservation()
        rows = check_conservation(self.buffer, self.ledger, CONSUMER, book, self.loop.step)
        assert rows.unjudged == 0
        assert rows.awaiting == book["open"] * SIZE == self.loop.exploring.waiting * SIZE
        return rows

    def check_late(self) -> None:
        """Groups whose rewards came late were trained, each with its rewards; no task was lost."""
        self.rows()
        groups = {group.ticket.group_id: group for group in stored_groups(self.buffer, "run")}
        leased = [name for lease in self.ledger.leases(CONSUMER) for name in lease.group_ids]
        assert len(leased) == len(set(leased))
        late = [name for name in leased if int(task_of(groups[name]).answer or 0) % 2]
        assert late
        assert all(groups[name].rewards == (1.0, 0.0) for name in leased)
        home = Counter(group.task for group in groups.values() if group.outcome == "arrived")
        waiting = Counter(group.task for group in self.loop.exploring.closer.awaiting.history())  # type: ignore[union-attr]
        dispatched = Shuffle(TASKS, seed=0).select((home + waiting).total())
        assert home + waiting == Counter(dispatched), "a task was lost, or played twice"


def task_of(group: Any) -> Any:
    return next(task for task in TASKS if task.key == group.task)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"every": 2, "staleness": 1}, {"groups": 3, "staleness": 1}], ids=str
)
def test_a_group_is_trained_when_its_last_reward_has_come(tmp_path: Path, settings: dict[str, Any]) -> None:
    house = LateHouse(tmp_path, **settings)
    house.loop.run()
    house.check_late()
    assert house.most > 0
    assert max(house.staleness) <= house.loop.exploring.sampler._max_staleness  # type: ignore[attr-defined]
    rewards = [r for taken in house.loop.exploring.take_rewards() for r in taken]
    assert None not in rewards, "the log sees the rewards that came"
    house.close()


@pytest.mark.slow
def test_waiting_groups_hold_admission_and_are_pending_in_the_books(tmp_path: Path) -> None:
    house = LateHouse(tmp_path, graded_every=0, staleness=0, every=1)
    house.loop.stop_requested = lambda: house.loop.exploring.waiting > 0
    with pytest.raises(Stopped):
        house.loop.run()
    exploring = house.loop.exploring
    waiting = exploring.waiting
    before = len(house.buffer)
    exploring.start(10)
    exploring.collect()
    assert house.sampler.outstanding == house.sampler._groups_per_step, "there is room for no more"
    assert exploring.waiting == waiting > 0
    assert len(house.buffer) == before
    assert house.rows().awaiting == waiting * SIZE
    house.close()


@pytest.mark.slow
def test_a_group_whose_rewards_do_not_come_is_judged_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house = LateHouse(tmp_path, graded_every=0)
    collect, looks = house.loop.exploring.collect, iter(range(100_000))

    def collect_later(missing: int = 0) -> None:
        late = timedelta(seconds=WAIT_S * (next(looks) % 5 == 4))
        monkeypatch.setattr(awaiting_module, "now", lambda: now() + late)
        collect(missing)

    house.loop.exploring.collect = collect_later  # type: ignore[method-assign]
    house.loop.run()
    rows = house.rows()
    assert rows.unscored > 0
    assert rows.trained == 6 * 2 * SIZE
    assert "did not arrive within 3600 s" in caplog.text
    house.close()


@pytest.mark.slow
def test_rows_dropped_for_a_reward_that_came_late_are_filtered_and_not_unscored(tmp_path: Path) -> None:
    house = LateHouse(tmp_path, graded_every=0, steps=1)

    collect = house.loop.exploring.collect

    def collect_and_say_the_same_of_all(missing: int = 0) -> None:
        ids = house.buffer.read("experiences", ["experience_id"]).column("experience_id").to_pylist()
        house.buffer.add_feedback([Feedback(name, "grader", "reward", 1.0) for name in ids])
        collect(missing)

    house.loop.exploring.collect = collect_and_say_the_same_of_all  # type: ignore[method-assign]
    house.loop.run()
    rows = house.rows()
    assert rows.unscored == 0
    assert rows.filtered["reward_variance_filter"] > 0
    house.close()


@pytest.mark.slow
@pytest.mark.parametrize("point", crash_points(), ids="-".join)
def test_a_run_killed_at_any_write_keeps_its_groups_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, str]
) -> None:
    for attempt, (call, when) in enumerate([(2, "after"), (4, "before")]):
        house = LateHouse(tmp_path, attempt, every=2)
        crash_at(house, point, when, call, monkeypatch)
        with contextlib.suppress(Crash):
            house.loop.run()
        house.close()
    final = LateHouse(tmp_path, 2, every=2)
    final.loop.run()
    final.check_late()
    final.close()


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_restarted_run_waits_only_for_what_is_left_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    house = LateHouse(tmp_path, 0, graded_every=0)
    house.loop.stop_requested = lambda: house.loop.exploring.waiting > 1
    with pytest.raises(Stopped):
        house.loop.run()
    waiting = house.loop.exploring.closer.awaiting
    assert waiting is not None
    names = {group.ticket.group_id for group in waiting.history()}
    house.close()
    later = timedelta(seconds=WAIT_S if late else WAIT_S / 2)
    monkeypatch.setattr(awaiting_module, "now", lambda: now() + later)
    again = LateHouse(tmp_path, 1)
    found = {group.ticket.group_id for group in again.loop.exploring.closer.awaiting.history()}  # type: ignore[union-attr]
    assert found == (set() if late else names)
    assert {again.sampler._groups.states.state(name) for name in names} == {"dropped" if late else "open"}
    if not late:
        assert set(again.dispatcher.open) >= {int(name[-8:]) for name in names}
        again.loop.run()
        again.check_late()
        assert conservation(again.buffer, again.ledger, CONSUMER).residual == 0
    again.close()


GRADER = """
import sys, time
from rft_data.placement.hub import HubClient
from rft_data.core.rows import Feedback

with HubClient(*sys.argv[1:]) as client:
    while True:
        rows = client.read("experiences", ["experience_id", "member", "reward"]).to_pylist()
        missing = [row for row in rows if row["reward"] is None]
        client.add_feedback(
            [Feedback(r["experience_id"], "grader", "reward", float(r["member"] == 0)) for r in missing]
        )
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_grader_in_another_process_is_heard_over_the_hub(tmp_path: Path) -> None:
    house = LateHouse(tmp_path, graded_every=0)
    with HubServer(house.buffer) as hub:
        command = [sys.executable, "-c", FORK + GRADER, hub.address, hub.token]
        with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as grader:
            try:
                house.loop.run()
            finally:
                grader.kill()
    house.check_late()
    house.close()
