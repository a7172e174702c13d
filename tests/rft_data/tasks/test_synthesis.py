"""Variants of tasks: who gets them, what their parent is, and what a maker may not do."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError, UnknownComponentError
from rft_data.core.rows import Experience, Task
from rft_data.tasks.synthesis import hinted, make_synthesis, synthesise
from tests.gsm8k import solutions
from tests.ops.real_rollouts import gsm8k_tasks
from tests.rft_data.conftest import make_experience
from tests.rft_data.tasks.conftest import make_tasks

SELF = "tests.rft_data.tasks.test_synthesis"


def twist(task: Task, experiences, rng, times: int = 1) -> list[Task]:
    """Two variants told apart by the generator, and the task itself."""
    words = [f"{task.messages[0]['content']} ({rng.integers(1000)})" for _ in range(2 * times)]
    return [task, *(replace(task, messages=({"role": "user", "content": word},)) for word in words)]


def fail_on_even(task: Task, experiences, rng) -> list[Task]:
    if int(task.answer) % 2 == 0:
        raise KeyError("even")
    return twist(task, experiences, rng)


def shown(task: Task, experiences, rng) -> list[Task]:
    """The groups of what a maker is shown, as a prompt."""
    groups = json.dumps([experience.group_id for experience in experiences])
    return [replace(task, messages=({"role": "user", "content": groups},))]


def hold_out(task: Task, experiences, rng) -> list[Task]:
    return [replace(task, split="heldout", metadata={"n": 1})]


@pytest.mark.slow
def test_variants_name_their_parent_and_depend_on_nothing_else(buffer, play):
    tasks = make_tasks(3)
    for task in tasks[:2]:
        play(task, [1.0, 0.0])
    synthesis = make_synthesis(f"{SELF}:twist", {}, parents=9)
    made = synthesise(tasks, buffer, synthesis, (0, 1)).tasks
    assert len(made) == 4, "the task itself is no variant, and one without an experience has none"
    newest = {row["task_id"]: row["experience_id"] for row in buffer.read("experiences").to_pylist()}
    assert [task.parent_experience_id for task in made] == [
        newest[t.task_id] for t in tasks[:2] for _ in "ab"
    ]
    assert all("synthesised" in task.tags for task in made)
    alone = synthesise(tasks[1:2], buffer, synthesis, (0, 1)).tasks
    assert alone == made[2:], "another parent changed what a task's variants are"
    assert synthesise(tasks, buffer, synthesis, (0, 2)).tasks != made


@pytest.mark.slow
def test_rollouts_set_aside_or_of_other_runs_are_not_shown(buffer, play):
    [task] = make_tasks(1)
    play(task, [1.0, 0.0])
    gone = play(task, [1.0, 0.0])
    play(task, [1.0, 0.0], run_id="another")
    named = {"taskset": task.taskset, "task_id": task.task_id, "reward": 1.0}
    others = {"import": "imported", "expert": "another", "eval": "run"}
    buffer.append(
        [
            make_experience(900 + n, source=source, run_id=run, **named)
            for n, (source, run) in enumerate(others.items())
        ]
    )
    synthesis = make_synthesis(f"{SELF}:shown", {}, parents=1)

    def seen(**chosen: object) -> list[str]:
        [made] = synthesise([task], buffer, synthesis, (0,), **chosen).tasks
        return json.loads(made.messages[0]["content"])

    first, set_aside, another = ([f"{run}/g-{n}"] * 2 for n, run in enumerate(("run", "run", "another")))
    told = [make_experience(900 + n).group_id for n in (1, 0)]
    assert seen(run_id="run", set_aside={gone}) == [*told, *first]
    assert seen(run_id="run") == [*told, *set_aside, *first]
    assert seen() == [*told, *another, *set_aside, *first]


@pytest.mark.slow
def test_a_failing_maker_costs_its_parent_only(buffer, play):
    tasks = make_tasks(2)
    for task in tasks:
        play(task, [1.0])
    made = synthesise(tasks, buffer, make_synthesis(f"{SELF}:fail_on_even", {}, parents=9), (0,))
    assert made.failures == {tasks[1].key: "KeyError: 'even'"}
    assert len(made.tasks) == 2


def test_a_held_out_variant_is_refused(buffer, play):
    [task] = make_tasks(1)
    play(task, [1.0])
    with pytest.raises(RowError, match="wanted tasks of split 'train'"):
        synthesise([task], buffer, make_synthesis(f"{SELF}:hold_out", {}, parents=1), (0,))


def test_an_unknown_maker_is_named():
    with pytest.raises(UnknownComponentError, match="did you mean 'hinted'"):
        make_synthesis("hintd", {}, parents=1)


def test_tasks_between_always_and_never_solved_have_their_turn_nearest_first():
    synthesis = make_synthesis("hinted", {}, parents=2, target_pass_rate=0.25)
    passes, rollouts = np.array([0.0, 4.0, 2.0, 1.0, 3.0, 0.0]), np.array([4, 4, 4, 4, 4, 0])
    nobody = np.zeros(6, bool)
    assert synthesis.choose(passes, rollouts, nobody).tolist() == [3, 2]
    barred = np.array([0, 0, 0, 1, 0, 0], bool)
    assert synthesis.choose(passes, rollouts, barred).tolist() == [2, 4]
    assert synthesis.choose(np.zeros(0), np.zeros(0, int), np.zeros(0, bool)).tolist() == []


def test_a_hint_is_the_beginning_of_the_best_solution():
    [task] = make_tasks(1)
    texts = {"bad": (0.0, "a\nb"), "short": (1.0, "only"), "good": (1.0, "first\nsecond\nthird\n1")}
    experiences = [
        make_experience(n, experience_id=name, reward=reward, completion_text=text)
        for n, (name, (reward, text)) in enumerate(texts.items())
    ]
    [variant] = hinted(task, experiences, np.random.default_rng(0))
    assert variant.parent_experience_id == "good"
    assert variant.messages[0]["content"].endswith("begins like this:\nfirst\nsecond")
    assert (variant.answer, variant.task_id != task.task_id) == (task.answer, True)
    [longest] = hinted(task, experiences, np.random.default_rng(0), share=1.0)
    assert longest.messages[0]["content"].endswith("third"), "the last line holds the answer"
    assert hinted(task, experiences[:2], np.random.default_rng(0)) == []


def test_hints_from_real_solutions_leave_the_end_out(buffer: Buffer):
    tasks = gsm8k_tasks(40)
    rows: list[Experience] = []
    for n, (task, line) in enumerate(zip(tasks, solutions(40), strict=True)):
        solved = line["6b_verification"]
        rows.append(
            make_experience(
                n,
                source="import",
                taskset=task.taskset,
                task_id=task.task_id,
                reward=float(solved["is_correct"]),
                completion_text=solved["solution"],
            )
        )
    buffer.append(rows)
    right = {row.experience_id: row.completion_text for row in rows if row.reward}
    made = synthesise(tasks, buffer, make_synthesis("hinted", {}, parents=40), (0,)).tasks
    assert made
    for task in made:
        told = right[task.parent_experience_id].strip().splitlines()
        hint = task.messages[0]["content"].split("begins like this:\n")[1].splitlines()
        assert hint == told[: len(hint)]
        assert 1 <= len(hint) < len(told)
