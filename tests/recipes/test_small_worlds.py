"""The parts of the recipes for guessing, countdown and small programs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from explorers.rewards.countdown import Countdown
from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow
from recipes import countdown, guessing, small_programs
from rft_data.core.engine import Sampling
from rft_data.core.errors import RowError
from rft_data.core.rows import Experience, Task
from rft_data.core.workflow import RolloutContext
from tests.explorers.conversations.conftest import SayingEngine, trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.jsonl import jsonl_tasks

SAMPLES = Path(__file__).parents[2] / "recipes/samples"
CTX = RolloutContext("run", "g", 2, 0, "e0", "rollout", Sampling(64))


def asked(question: str, answer: str = "", **metadata: Any) -> Task:
    return Task("t", ({"role": "user", "content": question},), answer, metadata=metadata)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = trained_tokenizer()
    made.chat_template = QWEN25
    return made


def played(tokenizer: Any, use: str, task: Task, *says: str) -> tuple[list[Experience], SayingEngine]:
    """One rollout of a workflow, the model saying these texts."""
    engine = SayingEngine(tokenizer, [f"{text}<|im_end|>" for text in says])
    workflow = make_workflow({"use": use}, tokenizer, Rewards({}, {}))
    return asyncio.run(workflow.run(task, engine, CTX)), engine


GAME = asked("A number from 340 to 349.", "346")


def test_a_game_is_one_row_that_hints_lead_to_the_number(tokenizer: Any) -> None:
    (row,), _ = played(tokenizer, "recipes.guessing:play", GAME, "344", "what?", "348", "346")
    assert (row.reward, row.turn) == (1.0, 0)
    assert [message["content"] for message in row.messages[1:]] == [
        "344", "more", "what?", "a number!", "348", "less", "346",
    ]  # fmt: skip


def test_a_game_is_lost_after_its_last_guess(tokenizer: Any) -> None:
    (row,), engine = played(tokenizer, "recipes.guessing:play", GAME, *["340"] * guessing.GUESSES, "346")
    assert row.reward == 0.0
    assert len(engine.seen) == guessing.GUESSES


def test_halving_wins_every_shown_game_and_counting_only_those_that_end_soon() -> None:
    tasks = [asked("A number from 340 to 349.", str(secret)) for secret in range(340, 350)]
    assert all(guessing.halving(task)[-1]["content"] == task.answer for task in tasks)
    assert sum(guessing.counting(task)[-1]["content"] == task.answer for task in tasks) == guessing.GUESSES
    with pytest.raises(RowError, match="there is no 'from 1 to 9'"):
        guessing.halving(asked("Guess!", "3"))


def test_the_numbers_to_guess_are_in_their_ranges() -> None:
    tasks = jsonl_tasks(
        SAMPLES / "guessing.jsonl",
        heldout=0.2,
    )
    assert len({task.messages[0]["content"] for task in tasks}) == 800
    for task in tasks:
        first, last = map(int, re.findall(r"\d+", str(task.messages[0]["content"])))
        assert first <= int(task.answer or "") <= last == first + 9


@pytest.mark.parametrize(
    ("numbers", "target", "solution"),
    [
        ((4, 7, 8), 19, "4+7+8=11+8=19 #### 4+7+8"),
        ((4, 7, 8), 11, "4+7+8=11+8=19; 4+7-8=11-8=3; 4+8-7=12-7=5; 7+8-4=15-4=11 #### 7+8-4"),
        (
            (1, 9, 2),
            -10,
            "1+9+2=10+2=12; 1+9-2=10-2=8; 1+2-9=3-9=-6; 9+2-1=11-1=10; 1-9-2=-8-2=-10 #### 1-9-2",
        ),
    ],
)
def test_a_search_ends_at_the_target(numbers: tuple[int, ...], target: int, solution: str) -> None:
    task = asked("Make it.", numbers=list(numbers), target=target)
    assert countdown.searched(task) == solution
    assert Countdown()(task, solution) == 1.0


@pytest.mark.slow
def test_no_held_out_puzzle_is_among_those_of_the_training_in_whatever_order() -> None:
    training, other = (
        jsonl_tasks(SAMPLES / name, heldout=0.0) for name in ("countdown.jsonl", "countdown_heldout.jsonl")
    )
    assert (len(training), len(other)) == (1591, 100)
    known, new = ({_puzzle(task) for task in tasks} for tasks in (training, other))
    assert len(new) == 100
    assert not known & new
    assert all(countdown.searched(task) for task in [*training, *other])


def _puzzle(task: Task) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(task.metadata["numbers"])), task.metadata["target"]


def test_a_search_that_finds_nothing_is_no_solution() -> None:
    with pytest.raises(RowError, match=r"no sum of \[1, 1, 1\] is 9"):
        countdown.searched(asked("Make it.", numbers=[1, 1, 1], target=9))
    assert countdown.guessed(asked("Make it.", "7 + 8 - 4")) == "#### 7+8-4"


@pytest.mark.slow
def test_careful_programs_pass_their_tests_and_hasty_ones_often_do_not() -> None:
    tasks = jsonl_tasks(
        SAMPLES / "small_programs.jsonl",
        prompt="text", answer="code", heldout=0.2, metadata=["test_list"],
    )  # fmt: skip
    passed = {write: sum(_passes(task, write(task)) for task in tasks) for write in (
        small_programs.careful, small_programs.hasty,
    )}  # fmt: skip
    assert len(tasks) == passed[small_programs.careful] == 600
    assert 0.4 < passed[small_programs.hasty] / 600 < 0.7
    with pytest.raises(RowError, match="there is no step such as 'plus 3'"):
        small_programs.careful(asked("Hello"))


def _passes(task: Task, code: str) -> bool:
    scope: dict[str, Any] = {}
    try:
        exec("\n".join([code, *task.metadata["test_list"]]), scope)  # noqa: S102 - both are this repository's
    except AssertionError:
        return False
    return True


def test_mbpp_shows_the_first_test_and_leaves_the_reward_to_the_recipe(tokenizer: Any) -> None:
    tests = ["assert add(1, 2) == 3", "assert add(5, 5) == 10"]
    task = asked("Write a function that adds.", test_list=tests)
    (row,), _ = played(tokenizer, "recipes.mbpp:solve", task, "def add(a, b): return a + b")
    shown = row.messages[0]["content"]
    assert tests[0] in shown
    assert tests[1] not in shown
    with pytest.raises(RowError, match="has no 'test_list'"):
        played(tokenizer, "recipes.mbpp:solve", asked("Write."), "x")
