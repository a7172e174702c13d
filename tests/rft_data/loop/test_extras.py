"""Explorers that join a run and leave it while it goes on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RoleDiedError, StalledError, Stopped
from rft_data.core.roles import Role, RoleSpec
from rft_data.loop import extras as extras_module
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.extras import Extras
from rft_data.loop.fleet import Fleet
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.server import HubServer
from rft_data.placement.local import LocalPlacement
from rft_data.tasks.selectors import Nothing
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.loop.test_fleet import Explorer, assignment, home, published
from tests.rft_data.loop.toy_run import TASKS
from tests.rft_data.loop.whole_run import WholeRun
from tests.waiting import wait_for


class Cluster:
    """An elastic placement whose room the test decides; its roles are the small ones of `test_fleet`."""

    overlaps = True

    def __init__(self) -> None:
        self.has_room = True
        self.going: set[str] = set()
        self.released: list[str] = []
        self.started: list[Explorer] = []

    def reserve(self, spec: RoleSpec) -> bool:
        return self.has_room

    def release(self, name: str) -> None:
        self.released.append(name)

    def drained(self) -> set[str]:
        return self.going

    def start(self, spec: RoleSpec) -> Explorer:
        self.started.append(Explorer(spec.name))
        return self.started[-1]


class Case:
    """A fleet of one lasting explorer that serves, and up to two more."""

    def __init__(self, versions: VersionRegistry) -> None:
        self.cluster, self.wanted = Cluster(), 2
        specs = [RoleSpec(f"explorer-{n}", "toy:toy", {}) for n in (1, 2)]
        self.first = Explorer("explorer-0")
        self.fleet = Fleet(
            [self.first],
            versions,
            whole_rounds=False,
            deadline_s=60,
            extras=Extras(self.cluster, specs, lambda: self.wanted),
        )
        self.fleet.publish(published(versions, 0))
        self.first.last("load_weights").set_result(0.0)

    def names(self) -> list[str]:
        return [member.role.name for member in self.fleet.members]

    def come(self, *names: str) -> None:
        """Collect until the fleet is these explorers."""

        def is_so() -> bool:
            self.fleet.collect()
            return self.names() == list(names)

        wait_for(is_so)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(extras_module, "LOOK_S", 0.0)
    monkeypatch.setattr(extras_module, "AGAIN_S", 0.0)
    with Buffer(tmp_path / "buffer") as buffer:
        yield Case(VersionRegistry(buffer, "run", tmp_path / "weights"))


def test_one_that_joins_gets_groups_when_it_has_proved_the_newest_weights(case: Case) -> None:
    case.wanted = 1
    case.come("explorer-0", "explorer-1")
    joined = case.cluster.started[0]
    assert [name for name, _ in joined.calls] == ["load_weights"]
    case.fleet.play([assignment(0), assignment(1)], 0)
    assert [member.load for member in case.fleet.members] == [2, 0], "it had no weights yet"
    joined.last("load_weights").set_result(0.0)
    case.fleet.collect()
    case.fleet.play([assignment(2)], 0)
    assert [member.load for member in case.fleet.members] == [2, 1]


def test_one_that_leaves_finishes_what_it_plays_and_gets_nothing_more(case: Case) -> None:
    case.come("explorer-0", "explorer-1", "explorer-2")
    for role in case.cluster.started:
        role.last("load_weights").set_result(0.0)
    case.fleet.collect()
    case.fleet.play([assignment(n) for n in range(3)], 0)
    case.wanted = 1
    case.fleet.collect()
    case.fleet.play([assignment(n) for n in (3, 4, 5)], 0)
    assert [member.load for member in case.fleet.members] == [3, 2, 1]
    leaving = case.cluster.started[1]
    leaving.last("explore").set_result([home(2)])
    assert case.fleet.collect() == ([home(2)], [])
    case.come("explorer-0", "explorer-1")
    assert case.fleet.handed_back() == []
    assert case.cluster.released == ["explorer-2"]


def test_what_one_cannot_finish_in_time_is_handed_back_once_its_process_has_ended(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras_module, "LEAVE_S", 0.0)
    case.wanted = 1
    case.come("explorer-0", "explorer-1")
    joined, may_end = case.cluster.started[0], Event()
    joined.last("load_weights").set_result(0.0)
    joined.close = lambda: may_end.wait(60)  # type: ignore[assignment, method-assign]
    case.fleet.collect()
    case.fleet.play([assignment(0), assignment(1)], 0)
    case.cluster.going = {"explorer-1"}
    case.cluster.has_room = False
    for _ in range(5):
        case.fleet.collect()
    assert case.names() == ["explorer-0", "explorer-1"], "its process had not ended"
    assert case.fleet.handed_back() == []
    may_end.set()
    case.come("explorer-0")
    assert case.fleet.handed_back() == [assignment(1)]
    assert case.fleet.playing == 1


def test_one_that_does_not_end_as_asked_is_named(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    def close() -> None:
        raise StalledError("it hangs in the kernel")

    case.wanted = 1
    case.come("explorer-0", "explorer-1")
    case.cluster.started[0].close = close  # type: ignore[method-assign]
    case.wanted = 0
    case.come("explorer-0")
    assert "explorer-1 did not end as asked: it hangs in the kernel" in caplog.text


def test_one_that_dies_costs_its_groups_and_may_come_again(case: Case) -> None:
    case.wanted = 1
    case.come("explorer-0", "explorer-1")
    case.cluster.started[0].last("load_weights").set_result(0.0)
    case.fleet.collect()
    case.fleet.play([assignment(0), assignment(1)], 0)
    case.cluster.has_room = False
    case.cluster.started[0].last("explore").set_exception(RoleDiedError("its node is gone"))
    assert case.fleet.collect() == ([], [assignment(1)])
    case.come("explorer-0")
    assert case.first.births == [], "only its own node was lost"
    case.cluster.has_room = True
    case.come("explorer-0", "explorer-1")
    assert case.fleet.versions() == [0]


class Elastic(LocalPlacement):
    """Kills what joined first, once it plays; then a node is drained under what joined in its place."""

    def __init__(self, hub: tuple[str, str]) -> None:
        super().__init__(hub)
        self.joined: list[Role] = []
        self.going: set[str] = set()

    def reserve(self, spec: RoleSpec) -> bool:
        return len(self.joined) < 2 and super().reserve(spec)

    def drained(self) -> set[str]:
        return self.going

    def start(self, spec: RoleSpec) -> Role:  # type: ignore[override]
        role = super().start(spec)
        if spec.name == "explorer-1":
            self.joined.append(role)
        return role


@pytest.mark.heavy
def test_a_run_keeps_its_books_while_explorers_join_die_and_are_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras_module, "LOOK_S", 0.05)
    monkeypatch.setattr(extras_module, "AGAIN_S", 0.0)
    monkeypatch.setattr(extras_module, "LEAVE_S", 0.0)
    made: list[Elastic] = []

    def placed(buffer: Buffer, hub: HubServer) -> Elastic:
        made.append(Elastic(HubAccess(hub.address, hub.token)))
        return made[0]

    house = WholeRun(tmp_path, 0, staleness=2, groups=2, steps=400, placed=placed, extras=1)
    placement, lives = made[0], 0

    def stop_requested() -> bool:
        """Do the next thing to the explorer that joined, whenever it plays; stop when both lives are over."""
        nonlocal lives
        extra = [one for one in house.loop.exploring.fleet.members if one.extra]
        if lives < 2 and extra and len(placement.joined) == lives + 1 and extra[0].load and extra[0].stays:
            lives += 1
            if lives == 1:
                os.kill(placement.joined[0].call("pid", int, deadline_s=30).result(), signal.SIGKILL)
            else:
                placement.going = {"explorer-1"}
        return lives == 2 and not extra

    house.loop.stop_requested = stop_requested
    with pytest.raises(Stopped, match="stopped at step"):
        house.loop.run()
    why = [row["error"] for row in house.buffer.read("groups").to_pylist() if row["outcome"] == "cancelled"]
    assert set(why) == {"its explorer died", "its explorer left"}
    house.steps = house.loop.step
    house.check()
    house.close()


def test_tasks_that_were_handed_back_are_played_however_often_that_happens() -> None:
    dispatcher = Dispatcher(Nothing(), {TASKS[0].key: TASKS[0]})
    for _ in range(3):
        dispatcher.give_back([TASKS[0].key], blamed=False)
        assert dispatcher.draw(1) == [TASKS[0].key]
    dispatcher.give_back([TASKS[0].key])
    assert dispatcher.draw(1) == [TASKS[0].key]
    dispatcher.give_back([TASKS[0].key])
    assert dispatcher.draw(1) == [], "its explorer died twice"
