"""Who serves and who plays while an explorer dies and comes back; the explorers are small roles."""

import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RoleDiedError
from rft_data.core.groups import Assignment, Played, Ticket
from rft_data.core.rows import WeightRef
from rft_data.loop.fleet import Fleet
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.loop.toy_run import TASKS
from tests.waiting import wait_for


class Explorer:
    """A role whose calls and births end when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        self.calls: list[tuple[str, Future[Any]]] = []
        self.births: list[Future[None]] = []

    def call(self, method: str, returns: Any, *, deadline_s: float, **arguments: Any) -> Future[Any]:
        self.calls.append((method, Future()))
        return self.calls[-1][1]

    def restart(self) -> Future[None]:
        self.incarnation += 1
        self.births.append(Future())
        return self.births[-1]

    def close(self) -> None:
        """Nothing runs."""

    def last(self, method: str) -> Future[Any]:
        return [future for name, future in self.calls if name == method][-1]


@pytest.fixture
def versions(tmp_path: Path):
    with Buffer(tmp_path / "buffer") as buffer:
        yield VersionRegistry(buffer, "run", tmp_path / "weights")


def published(versions: VersionRegistry, step: int) -> WeightRef:
    return versions.publish(step, lambda folder: (folder / "weights.txt").write_text(str(step)))


def serving(versions: VersionRegistry, *, whole_rounds: bool = False) -> tuple[Fleet, Explorer, Explorer]:
    first, second = Explorer("explorer-0"), Explorer("explorer-1")
    fleet = Fleet([first, second], versions, whole_rounds=whole_rounds, deadline_s=60, max_restarts=2)
    fleet.publish(published(versions, 0))
    for explorer in (first, second):
        explorer.last("load_weights").set_result(0.0)
    fleet.collect()
    assert fleet.versions() == [0]
    return fleet, first, second


def assignment(ordinal: int) -> Assignment:
    return Assignment(Ticket(f"run/0-{ordinal}", ordinal, 0), TASKS[ordinal])


def home(ordinal: int) -> Played:
    return Played(assignment(ordinal).ticket, TASKS[ordinal].key, "arrived", (), 0)


def asked_thrice(explorer: Explorer) -> bool:
    return [name for name, _ in explorer.calls].count("metrics") == 3


def test_costs_are_of_all_calls_whoever_was_told_of_them(versions: VersionRegistry) -> None:
    fleet, first, second = serving(versions)
    assert fleet.metrics() == {}
    for explorer in (first, second):
        explorer.last("metrics").set_result({"endpoint_calls": 2.0, "endpoint_cost": 0.5, "tokens": 9.0})
    assert fleet.metrics().keys() == {"explorer-0", "explorer-1"}, "a log takes them"
    assert str(fleet.costs) == "4 calls, 0 tokens, cost 1"
    first.last("metrics").set_result({"endpoint_calls": 1.0})
    second.last("metrics").set_exception(RoleDiedError("gone"))
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(fleet.all_costs)
        for explorer in (first, second):
            wait_for(partial(asked_thrice, explorer))
            explorer.last("metrics").set_result({"endpoint_calls": 8.0})
        assert asked.result() == {"endpoint_calls": 21.0, "endpoint_cost": 1.0}


def test_a_publication_has_its_bytes_and_the_seconds_of_the_slowest(versions: VersionRegistry) -> None:
    fleet, first, second = serving(versions)
    ref = versions.publish(1, lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 3000))
    fleet.publish(ref)
    for explorer in (first, second):
        explorer.last("load_weights").set_result(0.0)
    fleet.collect()
    assert all(0 < member.loaded_s < 60 for member in fleet.members)
    fleet.members[0].loaded_s, fleet.members[1].loaded_s = 2.0, 4.0
    shutil.rmtree(ref.path)  # weights that nobody needs any more are removed
    assert fleet.publication() == {
        "publication_bytes": 3000.0,
        "publication_s": 4.0,
        "publication_gb_per_s": 2 * 3000 / 4.0 / 1e9,
    }


@pytest.mark.slow
def test_the_others_play_on_while_an_explorer_starts_again(versions: VersionRegistry) -> None:
    fleet, first, second = serving(versions)
    fleet.play([assignment(0), assignment(1)], 0)
    first.last("explore").set_exception(RoleDiedError("killed"))
    assert fleet.collect() == ([], [assignment(0)])
    assert first.births[0] in fleet.futures()
    fleet.publish(published(versions, 1))
    second.last("explore").set_result([home(1)])
    second.last("load_weights").set_result(0.0)
    assert fleet.collect() == ([home(1)], [])
    assert fleet.versions() == [1]
    fleet.play([assignment(2)], 1)
    assert fleet.members[1].load == 1, "what has no weights yet was given a group"
    first.births[0].set_result(None)
    fleet.collect()
    first.last("load_weights").set_result(0.0)
    fleet.collect()
    assert [member.version for member in fleet.members] == [1, 1]
    assert not fleet.members[0].loading


def test_no_round_begins_while_an_explorer_starts_again(versions: VersionRegistry) -> None:
    fleet, first, _ = serving(versions, whole_rounds=True)
    fleet.play([assignment(0)], 0)
    first.last("explore").set_exception(RoleDiedError("killed"))
    fleet.collect()
    assert fleet.versions() == []
    first.births[0].set_result(None)
    fleet.collect()
    assert fleet.versions() == []
    first.last("load_weights").set_result(0.0)
    fleet.collect()
    assert fleet.versions() == [0]


def test_only_deaths_with_nothing_brought_home_between_them_count(versions: VersionRegistry) -> None:
    fleet, first, second = serving(versions)
    for life in range(5):
        fleet.play([assignment(2 * life), assignment(2 * life + 1)], 0)
        second.last("explore").set_result([home(2 * life + 1)])
        if life % 2:
            first.last("explore").set_result([home(2 * life)])
            fleet.collect()
            fleet.play([assignment(10), assignment(11)], 0)
            second.last("explore").set_result([home(11)])
        first.last("explore").set_exception(RoleDiedError("killed"))
        fleet.collect()
        first.births[-1].set_result(None)
        fleet.collect()
        first.last("load_weights").set_result(0.0)
        fleet.collect()
    assert first.incarnation == 5


def test_an_explorer_that_cannot_be_born_again_ends_the_run(versions: VersionRegistry) -> None:
    fleet, first, _ = serving(versions)
    fleet.play([assignment(0)], 0)
    first.last("explore").set_exception(RoleDiedError("killed"))
    fleet.collect()
    first.births[0].set_exception(RoleDiedError("no room"))
    fleet.collect()
    first.births[1].set_exception(RoleDiedError("still no room"))
    with pytest.raises(RoleDiedError, match="still no room"):
        fleet.collect()


def test_settling_waits_for_births_too(versions: VersionRegistry) -> None:
    fleet, first, _ = serving(versions)
    fleet.play([assignment(0)], 0)
    first.last("explore").set_exception(RoleDiedError("killed"))
    fleet.collect()
    born = first.births[0]
    first.call = lambda *_, **__: _done(0.0)  # type: ignore[method-assign, assignment]
    born.set_result(None)
    fleet.settle()
    assert [member.version for member in fleet.members] == [0, 0]


def _done(value: float) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Sender:
    """Writes down what it is told to send, and when."""

    def __init__(self, roles: list[Explorer]) -> None:
        self.roles = roles
        self.offers: list[tuple[int, list[str], int]] = []
        """Version, to whom, and how many loads had been asked of them by then."""

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        asked = [name for role in self.roles if role.name in explorers for name, _ in role.calls]
        self.offers.append((ref.version, list(explorers), asked.count("load_weights")))

    def close(self) -> None:
        """Nothing runs."""


def test_a_restarted_explorer_is_sent_the_newest_version_before_its_first_group(
    versions: VersionRegistry,
) -> None:
    first, second = Explorer("explorer-0"), Explorer("explorer-1")
    sender = Sender([first, second])
    fleet = Fleet([first, second], versions, whole_rounds=False, deadline_s=60, sender=sender)
    fleet.publish(published(versions, 0))
    for explorer in (first, second):
        explorer.last("load_weights").set_result(0.0)
    fleet.collect()
    fleet.play([assignment(0), assignment(1)], 0)
    second.last("explore").set_exception(RoleDiedError("it died"))
    fleet.collect()
    fleet.publish(published(versions, 1))
    assert sender.offers == [(0, ["explorer-0", "explorer-1"], 0), (1, ["explorer-0"], 1)]
    first.last("load_weights").set_result(0.0)
    second.births[-1].set_result(None)
    fleet.collect()
    assert sender.offers[2:] == [(1, ["explorer-1"], 1)], "at once, and before it is asked to load"
    assert second.calls[-1][0] == "load_weights"
    fleet.play([assignment(2), assignment(3)], 1)
    assert second.calls[-1][0] == "load_weights", "it plays nothing before"
    second.last("load_weights").set_result(0.0)
    fleet.collect()
    fleet.play([assignment(4)], 1)
    assert second.calls[-1][0] == "explore"
