"""What a selector is told of tasks that people retire; `test_late_rewards.py` has a whole run of it."""

import pytest

from rft_data.buffer import Buffer
from rft_data.core.rows import Feedback, TaskKey, now
from rft_data.run.retiring import RetiredByPeople
from rft_data.tasks.selectors.make import make_selector
from tests.rft_data.conftest import make_experience
from tests.rft_data.tasks.conftest import make_tasks


def said(key: TaskKey, buffer: Buffer, value: float) -> Feedback:
    row = make_experience(0, experience_id=f"{key.task_id}", taskset=key.taskset, task_id=key.task_id)
    buffer.append([row])
    return Feedback(row.experience_id, "ann", "retire_task", value, None, now())


@pytest.mark.slow
def test_a_selector_is_told_of_tasks_retired_and_brought_back(buffer: Buffer) -> None:
    tasks = make_tasks(6)
    selector = make_selector("shuffle", {}, tasks, 0)
    people = RetiredByPeople(buffer, selector, None, 3)
    for task in tasks[:2]:
        buffer.add_feedback([said(task.key, buffer, 1.0)])
    people.apply()
    drawn = selector.select(20)
    assert {task.key for task in tasks[2:]} == set(drawn)
    buffer.add_feedback([said(tasks[0].key, buffer, 0.0)])
    people.apply()
    assert set(selector.select(20)) == {task.key for task in tasks} - {tasks[1].key}


@pytest.mark.slow
def test_people_cannot_leave_a_step_without_tasks(buffer: Buffer, caplog: pytest.LogCaptureFixture) -> None:
    tasks = make_tasks(4)
    selector = make_selector("shuffle", {}, tasks, 0)
    buffer.add_feedback([said(task.key, buffer, 1.0) for task in tasks[:2]])
    RetiredByPeople(buffer, selector, None, 3).apply()
    assert selector.in_play == 4
    assert "fewer than the 3 that a step needs" in caplog.text
