"""Curation during a run: retire, revive, add; and a restart that notices nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.errors import ResumeError
from rft_data.core.rows import TaskKey
from rft_data.tasks.curator import TaskCurator, made_tasks
from rft_data.tasks.selectors.make import make_selector
from rft_data.tasks.synthesis import make_synthesis
from tests.rft_data.tasks.conftest import make_tasks

OPS = [{"task_difficulty_mapper": {}}, {"task_pass_rate_filter": {"min_rollouts": 2, "window": 10}}]
TWIST = "tests.rft_data.tasks.test_synthesis:twist"


def playable(made: TaskCurator) -> set[TaskKey]:
    """What the selector still chooses."""
    return set(made.selector.select(2 * made.selector.in_play))


def curator(buffer, tasks, *, ops=OPS, least=1, synthesis=None, admit=None, run_id="run") -> TaskCurator:
    extra = {} if admit is None else {"admit": admit}
    return TaskCurator(
        buffer=buffer,
        run_id=run_id,
        selector=make_selector("shuffle", {}, tasks, 0),
        tasks={task.key: task for task in tasks},
        pipeline=OperatorPipeline(ops, name="curation", text_column="text"),
        every=3,
        least_playable=least,
        synthesis=synthesis,
        seed=7,
        **extra,
    )


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_stale_groups_and_those_of_other_runs_retire_nobody(buffer, play):
    tasks = make_tasks(2)
    stale = play(tasks[0], [1.0, 1.0])
    play(tasks[1], [1.0, 1.0], run_id="another")
    made = curator(buffer, tasks)
    assert made.curate(1, set_aside={stale}).retired == {}


@pytest.mark.slow
def test_a_step_keeps_enough_tasks_to_play(buffer, play, caplog):
    tasks = make_tasks(3)
    for task in tasks[:2]:
        play(task, [1.0, 1.0])
    made = curator(buffer, tasks, least=2)
    assert made.curate(1).retired == {}
    assert "fewer than the 2 that a step needs" in caplog.text
    assert playable(made) == {task.key for task in tasks}
    assert made.state_dict()["retired"] == []


@pytest.mark.slow
def test_new_tasks_are_stored_with_their_parents_and_played(buffer, play):
    tasks = make_tasks(2)
    play(tasks[0], [1.0, 0.0])
    made = curator(buffer, tasks, synthesis=make_synthesis(TWIST, {}, parents=4))
    found = made.curate(5)
    assert len(found.added) == 2
    assert set(found.added) <= playable(made)
    assert set(found.added) <= made.tasks.keys()
    stored = {task.key: task for task in made_tasks(buffer)}
    assert stored.keys() == set(found.added)
    parents = {row["experience_id"] for row in buffer.read("experiences").to_pylist()}
    assert all(task.parent_experience_id in parents for task in stored.values())
    assert made.curate(6).added == (), "a task has its turn once"


@pytest.mark.slow
def test_new_tasks_that_are_not_admitted_are_not_added(buffer, play):
    tasks = make_tasks(1)
    play(tasks[0], [1.0, 0.0])
    made = curator(
        buffer, tasks, synthesis=make_synthesis(TWIST, {}, parents=4), admit=lambda new: list(new)[:1]
    )
    assert len(made.curate(1).added) == 1
    assert len(buffer.tasks()) == 1


@pytest.mark.slow
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
    again = curator(buffer, tasks, synthesis=synthesis)
    again.load_state_dict(saved)
    assert again.curate(2) == wanted
    assert wanted.revived == (tasks[0].key,)
    assert again.state_dict() == first.state_dict()
    assert again.select(9) == first.select(9)


@pytest.mark.slow
def test_a_restart_without_the_tasks_it_had_made_is_refused(buffer, play, tmp_path: Path):
    tasks = make_tasks(1)
    play(tasks[0], [1.0, 0.0])
    first = curator(buffer, tasks, synthesis=make_synthesis(TWIST, {}, parents=1))
    first.curate(1)
    refused = pytest.raises(ResumeError, match="which run 'run' had made, is not in the buffer")
    with Buffer(tmp_path / "another") as other, refused:
        curator(other, tasks).load_state_dict(first.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("stored_by", ["another run's synthesis", "a recipe", "a recipe that holds it out"])
def test_a_variant_that_was_stored_before_is_found_by_a_restart(buffer, play, stored_by: str):
    tasks = make_tasks(2)
    synthesis = make_synthesis(TWIST, {}, parents=2)
    if stored_by == "another run's synthesis":
        for task in tasks:
            play(task, [1.0, 0.0], run_id="one")
        curator(buffer, tasks, synthesis=synthesis, run_id="one").curate(3)
    for task in tasks:
        play(task, [1.0, 0.0])
    made = curator(buffer, tasks, synthesis=synthesis, admit=_keeping(buffer, stored_by))
    found = made.curate(3)
    assert len(found.added) == 4
    assert len(buffer.tasks()) == 4, "a task is stored once"
    again = curator(buffer, tasks, synthesis=synthesis)
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert {key: again.tasks[key] for key in found.added} == {key: made.tasks[key] for key in found.added}
    assert {again.tasks[key].split for key in found.added} == {"train"}
    assert again.curate(6) == made.curate(6)
    assert again.select(9) == made.select(9)


def _keeping(buffer, stored_by: str):
    """Lets all in; a recipe's tasks are in the buffer before."""

    def admit(new):
        if stored_by.startswith("a recipe"):
            split = "heldout" if "holds" in stored_by else "train"
            buffer.add_tasks([replace(task, tags=(), parent_experience_id=None, split=split) for task in new])
        return list(new)

    return admit


@pytest.mark.slow
def test_a_run_makes_a_task_of_its_own_recipe_its_first_ones_whatever_its_tags(buffer, play):
    tasks = [replace(task, tags=("synthesised",)) for task in make_tasks(2)]
    buffer.add_tasks(tasks)
    play(tasks[0], [1.0, 1.0])
    assert list(curator(buffer, tasks).curate(1).retired) == [tasks[0].key]


def test_a_task_that_an_operator_fails_on_stays_as_it_is(buffer, play):
    tasks = make_tasks(2)
    empty = replace(tasks[1], messages=({"role": "user", "content": " "},))
    made = curator(buffer, [tasks[0], empty], ops=[{"task_normalization_mapper": {}}])
    found = made.curate(1)
    assert "the prompt is empty" in found.failures[empty.key]
    assert (found.retired, playable(made)) == ({}, {tasks[0].key, empty.key})
