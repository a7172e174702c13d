"""Curation during a run: retire, revive, add; and a restart that notices nothing."""

import json
from dataclasses import replace

import pytest

from ops.pipeline import OperatorPipeline
from rft_data.errors import ResumeError
from rft_data.rows import TaskKey
from rft_data.selectors.make import make_selector
from rft_data.tasks.curator import TaskCurator, tasks_made_by
from rft_data.tasks.synthesis import make_synthesis
from tests.rft_data.tasks.conftest import make_tasks

OPS = [{"task_difficulty_mapper": {}}, {"task_pass_rate_filter": {"min_rollouts": 2, "window": 10}}]
TWIST = "tests.rft_data.tasks.test_synthesis:twist"


def playable(made: TaskCurator) -> set[TaskKey]:
    """What the selector still chooses."""
    return set(made.selector.select(2 * made.selector.in_play))


def curator(buffer, tasks, *, ops=OPS, least=1, synthesis=None, admit=None, also=()) -> TaskCurator:
    known = {task.key: task for task in (*also, *tasks)}
    extra = {} if admit is None else {"admit": admit}
    return TaskCurator(
        buffer=buffer,
        run_id="run",
        selector=make_selector("shuffle", {}, tasks, 0),
        tasks=known,
        pipeline=OperatorPipeline(ops, name="curation", text_column="text"),
        every=3,
        least_playable=least,
        synthesis=synthesis,
        seed=7,
        **extra,
    )


def test_solved_and_unsolved_tasks_are_retired_with_their_reasons(buffer, play):
    tasks = make_tasks(4)
    for task, rewards in zip(tasks, ([1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [1.0]), strict=True):
        play(task, rewards)
    made = curator(buffer, tasks)
    found = made.curate(3)
    assert found.retired == {
        tasks[0].key: "task_pass_rate_filter: solved: pass rate 1 of 2 rollouts",
        tasks[1].key: "task_pass_rate_filter: unsolved: pass rate 0 of 2 rollouts",
    }
    assert playable(made) == {tasks[2].key, tasks[3].key}
    assert made.curate(4).retired == {}, "a task is retired once"
    assert made.metrics()["tasks/retired"] == 2.0
    assert made.metrics()["tasks/playable"] == 2.0
    assert found.difficulty[tasks[2].key] == pytest.approx(0.5, abs=0.1)
    assert 0 < made.metrics()["tasks/difficulty"] < 1


def test_a_retired_task_comes_back_when_its_record_is_old(buffer, play):
    tasks = make_tasks(2)
    play(tasks[0], [1.0, 1.0], version=0)
    made = curator(buffer, tasks)
    made.curate(1)
    assert playable(made) == {tasks[1].key}
    play(tasks[1], [1.0, 0.0], version=9)
    assert made.curate(2).revived == ()
    play(tasks[1], [1.0, 0.0], version=10)
    assert made.curate(3).revived == (tasks[0].key,)
    assert playable(made) == {task.key for task in tasks}
    play(tasks[0], [1.0, 1.0], version=11)
    assert list(made.curate(4).retired) == [tasks[0].key], "still solved, it goes again"


def test_stale_groups_and_those_of_other_runs_retire_nobody(buffer, play):
    tasks = make_tasks(2)
    stale = play(tasks[0], [1.0, 1.0])
    play(tasks[1], [1.0, 1.0], run_id="another")
    made = curator(buffer, tasks)
    assert made.curate(1, set_aside={stale}).retired == {}


def test_a_step_keeps_enough_tasks_to_play(buffer, play, caplog):
    tasks = make_tasks(3)
    for task in tasks[:2]:
        play(task, [1.0, 1.0])
    made = curator(buffer, tasks, least=2)
    assert made.curate(1).retired == {}
    assert "fewer than the 2 that a step needs" in caplog.text
    assert playable(made) == {task.key for task in tasks}
    assert made.state_dict()["retired"] == []


def test_new_tasks_are_stored_with_their_parents_and_played(buffer, play):
    tasks = make_tasks(2)
    play(tasks[0], [1.0, 0.0])
    made = curator(buffer, tasks, synthesis=make_synthesis(TWIST, {}, parents=4))
    found = made.curate(5)
    assert len(found.added) == 2
    assert set(found.added) <= playable(made)
    assert set(found.added) <= made.tasks.keys()
    stored = {task.key: task for task in tasks_made_by(buffer, "run")}
    assert stored.keys() == set(found.added)
    parents = {row["experience_id"] for row in buffer.read("experiences").to_pylist()}
    assert all(task.parent_experience_id in parents for task in stored.values())
    assert made.curate(6).added == (), "a task has its turn once"


def test_new_tasks_that_are_not_admitted_are_not_added(buffer, play):
    tasks = make_tasks(1)
    play(tasks[0], [1.0, 0.0])
    made = curator(
        buffer, tasks, synthesis=make_synthesis(TWIST, {}, parents=4), admit=lambda new: list(new)[:1]
    )
    assert len(made.curate(1).added) == 1
    assert len(buffer.tasks()) == 1


def test_a_restart_from_the_state_goes_on_as_if_nothing_had_happened(buffer, play):
    tasks = make_tasks(4)
    synthesis = make_synthesis(TWIST, {}, parents=1)
    play(tasks[0], [1.0, 1.0])
    play(tasks[1], [1.0, 0.0])
    first = curator(buffer, tasks, synthesis=synthesis)
    first.curate(1)
    saved = json.loads(json.dumps(first.state_dict()))
    play(tasks[2], [1.0, 0.0], version=20)
    wanted = first.curate(2)
    # the killed run had stored the tasks of step 2 already: they are known, and do not count yet
    again = curator(buffer, tasks, synthesis=synthesis, also=tasks_made_by(buffer, "run"))
    again.load_state_dict(saved)
    assert again.curate(2) == wanted
    assert wanted.revived == (tasks[0].key,)
    assert again.state_dict() == first.state_dict()
    assert again.select(9) == first.select(9)


def test_a_restart_without_the_tasks_it_had_made_is_refused(buffer, play):
    tasks = make_tasks(1)
    play(tasks[0], [1.0, 0.0])
    first = curator(buffer, tasks, synthesis=make_synthesis(TWIST, {}, parents=1))
    first.curate(1)
    with pytest.raises(ResumeError, match="which run 'run' had made, is not in the buffer"):
        curator(buffer, tasks).load_state_dict(first.state_dict())


def test_a_task_that_an_operator_fails_on_stays_as_it_is(buffer, play):
    tasks = make_tasks(2)
    empty = replace(tasks[1], messages=({"role": "user", "content": " "},))
    made = curator(buffer, [tasks[0], empty], ops=[{"task_normalization_mapper": {}}])
    found = made.curate(1)
    assert "the prompt is empty" in found.failures[empty.key]
    assert (found.retired, playable(made)) == ({}, {tasks[0].key, empty.key})
