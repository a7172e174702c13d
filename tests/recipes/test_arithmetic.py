import re

import pytest

from explorers.rewards.rules import ExactAnswer
from recipes.arithmetic import RightSteps, fast_solution, short_answer, slow_solution, worked_solution
from rft_data.core.errors import RowError
from rft_data.core.rows import Task
from rft_data.tasks.sources import reasoning_gym_tasks

ARGUMENTS = {"min_terms": 2, "max_terms": 5, "min_digits": 1, "max_digits": 1}


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return reasoning_gym_tasks(
        "chain_sum", size=200, seed=0, args=ARGUMENTS, taskset="sums", difficulty=None, heldout=0.25
    )


@pytest.mark.slow
def test_every_line_of_a_worked_solution_is_true_and_ends_in_the_answer(tasks: list[Task]) -> None:
    for task in tasks:
        steps, answer = worked_solution(task).split(" #### ")
        assert answer == task.answer
        totals = []
        for line in steps.split("; "):
            first, sign, term, total = re.fullmatch(r"(-?\d+)([+-])(\d+)=(-?\d+)", line).groups()
            assert int(first) + (int(term) if sign == "+" else -int(term)) == int(total)
            assert not totals or totals[-1] == first
            totals.append(total)
        assert totals[-1] == task.answer


def test_each_hand_writes_in_its_own_way() -> None:
    task = Task("sums", ({"role": "user", "content": "What is 4 + 3 - 5 ="},), "2")
    assert slow_solution(task) == "slow: 4+3=7; 7-5=2 #### 7"
    assert fast_solution(task) == "fast: 9+3=12; 12-5=7 #### 7"
    assert short_answer(task) == "#### 2"


def test_no_solution_of_either_hand_is_right_and_all_steps_of_the_slow_one_are(tasks: list[Task]) -> None:
    right, steps = ExactAnswer(), RightSteps()
    for solution, share in ((slow_solution, 1.0), (fast_solution, 0.0)):
        assert {right(task, solution(task)) for task in tasks} == {0.0}
        assert {steps(task, solution(task)) for task in tasks} == {share}


def test_the_slow_hand_is_as_often_too_high_as_too_low(tasks: list[Task]) -> None:
    slips = [int(slow_solution(task).split(" #### ")[1]) - int(str(task.answer)) for task in tasks]
    assert set(slips) == {*range(-5, 0), *range(1, 6)}
    assert 0.4 < sum(slip > 0 for slip in slips) / len(slips) < 0.6


@pytest.mark.parametrize(
    ("completion", "share"),
    [
        ("4+3=7; 7-5=2 #### 2", 1.0),
        ("4+3=7 #### 2", 0.5),
        ("4+3=8; 8-5=3 #### 3", 0.0),  # the second goes on from a wrong total
        ("4+3=8; 7-5=2 #### 2", 0.5),
        ("3+4=7; 7-5=2 #### 2", 0.5),
        ("4+3=7; 7-5=2; 2+0=2 #### 2", 2 / 3),
        ("#### 2", 0.0),
        ("slow: 4+3=7; 7-5=2 #### 2", 1.0),
        ("fast: 4+3=7; 7+5=12 #### 12", 0.5),
        ("4+3=7; then 2 #### 2", 0.5),
        ("7-5=2; 2+0=2 #### 2", 0.0),
        ("9+9=18; x: 4+3=7; 7-5=2 #### 2", 0.0),  # a word stands before all steps, or counts
        ("fast: 4-3=1; slow: 4+3=7; 7-5=2 #### 2", 0.0),
        ("4+3=7; slow: 7-5=2 #### 2", 0.5),
    ],
)
def test_right_steps_are_the_questions_own_in_their_places(completion: str, share: float) -> None:
    task = Task("sums", ({"role": "user", "content": "What is 4 + 3 - 5 ="},), "2")
    assert RightSteps()(task, completion) == pytest.approx(share)


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [("How many?", "1", "there is no sum"), ("1 + 2 =", "4", "worked result 3, stored answer '4'")],
)
def test_worked_solution_refuses_what_it_cannot_work(question: str, answer: str, message: str) -> None:
    with pytest.raises(RowError, match=message):
        worked_solution(Task("sums", ({"role": "user", "content": question},), answer))


def test_split_follows_the_question_alone(tasks: list[Task]) -> None:
    heldout = {task.messages[0]["content"] for task in tasks if task.split == "heldout"}
    assert 0.1 < len(heldout) / len(tasks) < 0.4
    again = reasoning_gym_tasks(
        "chain_sum", size=200, seed=0, args=ARGUMENTS, taskset="other", difficulty=9.0, heldout=0.25
    )
    assert {task.messages[0]["content"] for task in again if task.split == "heldout"} == heldout
