"""Synchronous runs broken off anywhere end as a straight run, also with short steps and refilled rounds.

A suite run draws the breaks of seed 0, with `RFT_BREAKS_SEED=N` others; `RFT_BREAKS=all` breaks a
run off at every single pass of every failpoint, one run for each.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest

from rft_data.core import failpoints
from rft_data.core.errors import RftError, Stopped
from rft_data.loop import repeating
from tests.rft_data.loop.whole_run import WholeRun

SETTINGS = {"rule": "drawn", "groups": 3, "steps": 8, "max_explored": 5, "selector": "difficulty"}
PLACES = {"one explorer": {}, "two in threads": {"explorers": 2}}
SEED = int(os.environ.get("RFT_BREAKS_SEED", "0"))
ALL = os.environ.get("RFT_BREAKS") == "all"
LONG = pytest.mark.timeout(4 * 3600 if ALL else 300)
N_BREAKS = 6
"""Breaks of one run."""

Break = tuple[str, int]
"""A failpoint, and at which pass of it the run is broken off."""


class Passes(Counter[str]):
    """Counts the passes of every failpoint, in place of an armed one."""

    def hit(self, name: str) -> None:
        self[name] += 1


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop looks again while a round is under way, as it does when rounds take seconds."""
    monkeypatch.setattr(repeating, "LOOK_S", 0.002)


def outcome(house: WholeRun) -> dict[str, object]:
    """What a finished run trained, on which tasks in which order, and what its selector knows."""
    task = {row["group_id"]: row["task_id"] for row in house.buffer.read("groups").to_pylist()}
    leases = sorted(house.ledger.leases(), key=lambda lease: lease.step)
    selector = house.dispatcher.selector.state_dict()
    # a restarted run skips version numbers
    selector["columns"] = {name: kept for name, kept in selector["columns"].items() if name != "version"}
    return {
        "played": [[task[group_id] for group_id in lease.group_ids] for lease in leases],
        "trained": house.trained(),
        "selector": selector,
    }


def once(root: Path, attempt: int, settings: dict, at: Break | None) -> dict[str, object] | None:
    """Start a run or go on with it; its outcome, or None if it was broken off at that pass of a failpoint."""
    with failpoints.armed(*(at or ("none", 1))) as armed, ExitStack() as opened:
        try:
            house = WholeRun(root, attempt, opened=opened, **settings)
            house.loop.run()
        except (OSError, RftError):
            if armed.passes < armed.at:  # it ended by itself
                raise
            return None
        house.check()
        return outcome(house)


def ended(root: Path, settings: dict, breaks: Iterable[Break] = ()) -> dict[str, object]:
    """The outcome of a run that is broken off again and again."""
    for attempt, at in enumerate(chain(breaks, [None])):
        if (found := once(root, attempt, settings, at)) is not None:
            return found
    raise AssertionError("a run that is not broken off does not end")


@pytest.fixture(scope="module", params=PLACES)
def straight(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict, dict[str, object], Passes]:
    """Settings, the outcome of a run that nothing breaks off, and how often it passes each failpoint."""
    settings, passes = {**SETTINGS, **PLACES[request.param]}, Passes()
    before, failpoints._armed = failpoints._armed, passes
    try:
        house = WholeRun(tmp_path_factory.mktemp("straight"), 0, **settings)
        house.loop.run()
    finally:
        failpoints._armed = before
    found = outcome(house)
    house.close()
    sizes = {len(groups) for groups in found["played"]}
    assert len(sizes) > 1, "every step is full"
    return settings, found, passes


def histories(passes: Passes) -> list[list[Break]]:
    """Breaks for one run after another: a few at random, or every single one in a run of its own."""
    if ALL:
        return [[(name, at)] for name, times in passes.items() for at in range(1, times + 1)]
    draw = random.Random(SEED)  # noqa: S311 - no secret
    names = draw.choices(sorted(passes), k=N_BREAKS)
    return [[(name, draw.randint(1, 1 + passes[name] // 4)) for name in names]]


@LONG
@pytest.mark.slow
def test_a_run_broken_off_anywhere_ends_as_a_straight_one(tmp_path: Path, straight) -> None:
    settings, wanted, passes = straight
    jitter = {"jitter": SEED} if "explorers" in settings else {}
    for number, breaks in enumerate(histories(passes)):
        found = ended(tmp_path / str(number), {**settings, **jitter}, breaks)
        assert found == wanted, f"RFT_BREAKS_SEED={SEED}: broken off at {breaks}"


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [SEED + 1, SEED + 2])
def test_what_a_run_trains_does_not_depend_on_who_is_quicker(tmp_path: Path, straight, jitter: int) -> None:
    settings, wanted, _ = straight
    assert ended(tmp_path, {**settings, "jitter": jitter}) == wanted, f"RFT_BREAKS_SEED={SEED}"


@pytest.mark.slow
def test_a_run_stopped_while_it_trains_old_leases_again_ends_as_a_straight_one(
    tmp_path: Path, straight
) -> None:
    settings, wanted, _ = straight
    assert once(tmp_path, 0, settings, ("lease.granted", 6)) is None
    with ExitStack() as opened:
        house = WholeRun(tmp_path, 1, opened=opened, **settings)
        house.loop.stop_requested = lambda: house.loop.step == 4
        with pytest.raises(Stopped, match="step 4 of 8"):
            house.loop.run()
    assert once(tmp_path, 2, settings, None) == wanted


@pytest.mark.slow
def test_a_run_that_falls_back_over_a_damaged_checkpoint_ends_as_a_straight_one(
    tmp_path: Path, straight
) -> None:
    settings, wanted, _ = straight
    assert once(tmp_path, 0, settings, ("lease.granted", 8)) is None
    with (tmp_path / "checkpoints" / "checkpoint-6" / "trained.txt").open("a") as file:
        file.write("x")
    assert once(tmp_path, 1, settings, ("checkpoint.sealed", 1)) is None
    assert once(tmp_path, 2, settings, None) == wanted
