"""Groups that arrive are closed together, without holding up a trainer that waits for them."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rft_data.core.roles import Role
from rft_data.loop import exploring as module
from rft_data.loop.fleet import Fleet
from tests.rft_data.loop.whole_run import WholeRun


class Held:
    """The toy explorer, whose groups arrive when the test says so."""

    name, incarnation = "explorer-0", 0

    def __init__(self, role: Role) -> None:
        self._role = role
        self.waiting: list[tuple[Future[Any], dict[str, Any]]] = []

    def call(self, method: str, returns: Any, *, deadline_s: float, **arguments: Any) -> Future[Any]:
        if method != "explore":
            return self._role.call(method, returns, deadline_s=deadline_s, **arguments)
        self.waiting.append((Future(), arguments))
        return self.waiting[-1][0]

    def arrive(self, n: int) -> None:
        """Let the n calls that began first return."""
        done, self.waiting = self.waiting[:n], self.waiting[n:]
        for future, arguments in done:
            future.set_result(self._role.call("explore", list, deadline_s=60, **arguments).result())


Make = Callable[[int], tuple[WholeRun, Held]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A start of a run whose explorer plays n groups; no test is so slow that these times pass."""
    monkeypatch.setattr(module, "GATHER_S", 120.0)
    monkeypatch.setattr(module, "HURRY_S", 60.0)
    opened = []

    def start(n: int) -> tuple[WholeRun, Held]:
        house = WholeRun(tmp_path, len(opened), rule="two", staleness=3)
        opened.append(house)
        held = Held(house.explorer)
        house.loop.exploring.fleet = Fleet([held], house.versions, whole_rounds=False, deadline_s=60)
        house.loop.publish_first()
        house.loop.exploring.start(n)
        return house, held

    yield start
    for house in opened:
        house.close()


def stored(house: WholeRun) -> int:
    return house.buffer.counts()["groups"]


@pytest.mark.slow
def test_groups_that_arrive_one_by_one_are_closed_together(make: Make) -> None:
    house, held = make(4)
    exploring = house.loop.exploring
    for _ in range(2):
        held.arrive(1)
        exploring.collect()
    assert (stored(house), exploring.under_way, exploring.closed) == (0, 4, 0)
    assert module.HURRY_S < exploring.gathered_in_s <= module.GATHER_S
    exploring.collect(3)
    assert stored(house) == 0, "a trainer that waits for three is not helped by two"
    assert 0 < exploring.gathered_in_s <= module.HURRY_S
    exploring.collect(2)
    assert (stored(house), exploring.under_way, exploring.closed) == (2, 2, 2)


@pytest.mark.slow
def test_groups_do_not_wait_when_no_other_is_played(make: Make) -> None:
    house, held = make(2)
    held.arrive(2)
    house.loop.exploring.collect()
    assert (stored(house), house.loop.exploring.under_way) == (2, 0)


@pytest.mark.slow
def test_groups_wait_for_a_bounded_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    house, held = make(2)
    monkeypatch.setattr(module, "GATHER_S", 0.0)
    held.arrive(1)
    house.loop.exploring.collect()
    assert stored(house) == 1


@pytest.mark.slow
def test_a_trainer_waits_only_for_groups_that_are_not_closed(make: Make) -> None:
    house, held = make(4)
    loop = house.loop
    assert loop.missing() == 2
    held.arrive(1)
    loop.exploring.collect(1)
    assert loop.missing() == 1
    held.arrive(1)
    loop.exploring.collect(1)
    assert loop.missing() == 0  # it takes the two that are ready first


@pytest.mark.slow
def test_groups_that_waited_when_the_run_was_killed_are_closed_by_the_next_start(make: Make) -> None:
    house, held = make(4)
    held.arrive(3)
    house.loop.exploring.collect()
    assert stored(house) == 0
    house.close()
    again, held = make(0)
    assert stored(again) == 3
    assert again.sampler.conservation()["ready"] == 3
