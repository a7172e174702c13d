"""An evaluation while explorers die: every task is answered once."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.codec import to_experiences
from rft_data.core.errors import RftError, RoleDiedError, StalledError
from rft_data.core.roles import Role, RoleSpec
from rft_data.core.rows import Task, WeightRef
from rft_data.core.words import HubRole
from rft_data.loop.evaluation import evaluate
from rft_data.loop.fleet import Fleet
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.server import HubServer
from rft_data.placement.local import LocalPlacement
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.conftest import make_experience
from tests.rft_data.loop.toy_run import TASKS
from tests.waiting import wait_for

LABEL = "run/eval-final-0"


def fleet_of(buffer: Buffer, folder: Path, *roles: Role, **settings: Any) -> Fleet:
    versions = VersionRegistry(buffer, "run", folder / "weights")
    fleet = Fleet(roles, versions, whole_rounds=False, deadline_s=60, **settings)
    fleet.publish(versions.publish(0, lambda draft: (draft / "trained.txt").write_text("")))
    return fleet


def check_answers(buffer: Buffer, seqs: list[int], samples: int) -> None:
    """Every task has its answers, and nothing else is stored."""
    rows = to_experiences(buffer.take(seqs))
    assert sorted((row.task_id, row.member) for row in rows) == sorted(
        (task.task_id, member) for task in TASKS[:4] for member in range(samples)
    )
    assert len(buffer) == len(set(seqs)) == len(rows)


@pytest.mark.heavy
def test_an_evaluation_outlives_an_explorer_that_is_killed_in_the_middle_of_it(tmp_path: Path) -> None:
    with ExitStack() as opened:
        buffer = opened.enter_context(Buffer(tmp_path / "buffer"))
        hub = HubServer(buffer).start()
        opened.callback(hub.close)
        placement = LocalPlacement(HubAccess(hub.address, hub.token))
        opened.callback(placement.close)
        pid_file = tmp_path / "pid"
        roles = [
            placement.start(
                RoleSpec(
                    f"explorer-{n}",
                    "tests.rft_data.loop.toy_run:explorer_role",
                    {"seed": n, "killed": str(pid_file) if n == 0 else ""},
                    hub_role=HubRole.EXPLORER,
                )
            )
            for n in range(2)
        ]

        def kill() -> None:
            wait_for(pid_file.exists)
            os.kill(int(pid_file.read_text()), signal.SIGKILL)

        killer = Thread(target=kill)
        killer.start()
        seqs = evaluate(fleet_of(buffer, tmp_path, *roles), buffer, TASKS[:4], LABEL, 2)
        killer.join()
        assert [role.incarnation for role in roles] == [1, 0]
        check_answers(buffer, seqs, 2)


class Explorer:
    """A role that answers each task, or does what `acts` has for its next evaluations."""

    def __init__(self, name: str, buffer: Buffer, *acts: Callable[[list[Task]], None]) -> None:
        self.name = name
        self.incarnation = 0
        self.closed = False
        self.asked: list[list[Task]] = []
        self._buffer = buffer
        self._acts = list(acts)

    def call(self, method: str, returns: Any, *, deadline_s: float, **arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(getattr(self, method)(**arguments))
        except RftError as err:
            done.set_exception(err)
        return done

    def load_weights(self, ref: WeightRef) -> float:
        return 0.0

    def evaluate(self, tasks: list[Task], label: str, samples: int) -> list[int]:
        self.asked.append(tasks)
        if self._acts:
            self._acts.pop(0)(tasks)
        return self.answer(tasks)

    def answer(self, tasks: list[Task]) -> list[int]:
        rows = [
            make_experience(
                experience_id=task.task_id,
                source="eval",
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=f"{LABEL}-{task.task_id}",
                member=0,
                explorer_id=self.name,
            )
            for task in tasks
        ]
        return list(self._buffer.append(rows).seqs)

    def restart(self) -> Future[None]:
        self.incarnation += 1
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        self.closed = True


def die(tasks: list[Task]) -> None:
    raise RoleDiedError("killed")


@pytest.fixture
def buffer(tmp_path: Path):
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


@pytest.mark.slow
def test_what_a_dead_explorer_had_stored_counts_and_only_the_rest_is_asked_of_others(
    buffer: Buffer, tmp_path: Path
) -> None:
    def store_one_and_die(tasks: list[Task]) -> None:
        second.answer(tasks[:1])
        raise RoleDiedError("killed")

    first, second = Explorer("explorer-0", buffer), Explorer("explorer-1", buffer, store_one_and_die)
    fleet = fleet_of(buffer, tmp_path, first, second)
    check_answers(buffer, evaluate(fleet, buffer, TASKS[:4], LABEL, 1), 1)
    assert (first.asked, second.asked) == ([TASKS[:2], TASKS[3:4]], [TASKS[2:4]])
    assert [member.deaths for member in fleet.members] == [0, 1]


@pytest.mark.slow
def test_an_extra_explorer_has_ended_before_its_tasks_are_asked_of_others(
    buffer: Buffer, tmp_path: Path
) -> None:
    def stall(tasks: list[Task]) -> None:
        raise StalledError("it is still busy with it")

    first = Explorer("explorer-0", buffer)
    extra = Explorer("explorer-1", buffer, stall)
    fleet = fleet_of(buffer, tmp_path, first)
    fleet.join(extra)
    seen: list[bool] = []
    first._acts = [lambda _: None, lambda _: seen.append(extra.closed)]
    check_answers(buffer, evaluate(fleet, buffer, TASKS[:4], LABEL, 1), 1)
    assert (seen, extra.incarnation) == ([True], 0)


def test_an_evaluation_that_kills_its_explorer_again_and_again_ends_the_run(
    buffer: Buffer, tmp_path: Path
) -> None:
    role = Explorer("explorer-0", buffer, *[die] * 3)
    with pytest.raises(RoleDiedError, match="killed"):
        evaluate(fleet_of(buffer, tmp_path, role, max_restarts=2), buffer, TASKS[:4], LABEL, 1)
    assert role.incarnation == 2


@pytest.mark.slow
def test_only_deaths_with_no_answer_between_them_count(buffer: Buffer, tmp_path: Path) -> None:
    role = Explorer("explorer-0", buffer, *[die, lambda _: None] * 4)
    fleet = fleet_of(buffer, tmp_path, role, max_restarts=1)
    seqs = [seq for task in TASKS[:4] for seq in evaluate(fleet, buffer, [task], LABEL, 1)]
    check_answers(buffer, seqs, 1)
    assert role.incarnation == 4
