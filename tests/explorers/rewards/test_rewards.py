from __future__ import annotations

import threading

import pytest

from explorers.rewards.contract import judge, reward_kind
from explorers.rewards.registry import REWARDS, is_trusted, make_reward
from explorers.rewards.rules import AnswerFormat, ExactAnswer, MathVerify
from rft_data.core.errors import RecipeError, UnknownComponentError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from tests.gsm8k import FULL, solutions


def task(answer: str | None) -> Task:
    return Task("maths", ({"role": "user", "content": "?"},), answer=answer)


@pytest.mark.parametrize(
    ("answer", "completion", "reward"),
    [
        ("1234", "so it is\n#### 1,234", 1.0),
        ("1234", "#### 1 234 \nand more", 1.0),
        ("1234", "#### 7\n#### 1234", 1.0),
        ("1234", "#### 1235", 0.0),
        ("1234", "#### 1234.0", 0.0),
        ("1234", "1234", 0.0),
        ("1234", "", 0.0),
        ("worked out\n#### 1,234", "#### 1234", 1.0),
    ],
)
def test_exact_answer_compares_what_follows_the_last_marker(
    answer: str, completion: str, reward: float
) -> None:
    assert ExactAnswer()(task(answer), completion) == reward


def test_exact_answer_takes_another_marker() -> None:
    assert ExactAnswer("A:")(task("3"), "A: 3") == 1.0


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("4 + 4\n#### 8", 1.0),
        ("#### -1,234.50 \n", 1.0),
        ("12; 19 #### 19", 1.0),
        ("#### 8 eggs", 0.0),
        ("#### 8\nand so on", 0.0),
        ("#### 7\n#### 8", 0.0),
        ("####\n8", 0.0),
        ("8", 0.0),
    ],
)
def test_answer_format_wants_one_marker_and_a_number_at_the_end(completion: str, reward: float) -> None:
    assert AnswerFormat()(task("1"), completion) == reward


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "completion", "reward"),
    [
        ("18", "#### 18", 1.0),
        ("18", "#### 18.0", 1.0),
        ("18", "#### **18**", 1.0),
        ("18", "thus\nA: 18", 1.0),
        ("90000", "A: $90,000", 1.0),
        ("18", r"so \boxed{17}, no, $\boxed{18}$; there are 20", 1.0),
        ("18", "3 * 6 makes 18 eggs.", 1.0),
        ("18", "it costs $2.00 = $<<1+1=2.00>>2.00\nA: 18", 1.0),
        (r"\frac{1}{2}", "#### 0.5", 1.0),
        ("3.5", "A: 7/2", 1.0),
        ("2x+1", r"\boxed{1 + 2x}", 1.0),
        ("-4", "#### -4", 1.0),
        ("worked out 9\n#### 1,234", "A: 1234", 1.0),
        ("worked out 9\nA: 1,234", "#### 1234", 1.0),
        ("18", "#### 17", 0.0),
        ("18", "#### 18\n#### 19", 0.0),
        ("18", "18 ####", 0.0),
        ("18", "#### 9^9^9^9^9", 0.0),
        ("18", "none", 0.0),
        ("18", "", 0.0),
        ("18", "#### " + "(" * 5000, 0.0),
    ],
)
def test_math_verify_finds_the_final_answer(answer: str, completion: str, reward: float) -> None:
    assert MathVerify()(task(answer), completion) == reward


@pytest.mark.parametrize("answer", [None, "", "Paris", "$$"])
def test_a_task_without_a_mathematical_answer_is_unscored_not_wrong(answer: str | None) -> None:
    assert isinstance(MathVerify()(task(answer), "#### 18"), Unscored)
    assert isinstance(ExactAnswer()(task(None), "#### 18"), Unscored)


def test_math_verify_works_outside_the_main_thread() -> None:
    scored: list[float | Unscored] = []
    reward = MathVerify()

    def play() -> None:
        scored.extend([reward(task("18"), "#### 18"), reward(task(r"\frac{1}{2}"), r"\boxed{0.5}")])

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert scored == [1.0, 1.0]


def test_a_reward_that_needs_arguments_says_which() -> None:
    assert make_reward("exact_answer", {})(task("2"), "#### 2") == 1.0
    assert make_reward("later", {})(task("2"), "") == Unscored("", UnscoredCause.LATER)
    with pytest.raises(RecipeError, match="missing 1 required positional argument: 'model'"):
        make_reward("reward_model", {})


def test_only_built_ins_that_say_so_are_trusted() -> None:
    assert {name for name in REWARDS if is_trusted(name)} == {
        *("exact_answer", "answer_format", "later", "multiple_choice", "number", "regex", "countdown")
    }
    assert not is_trusted("explorers.rewards.rules:ExactAnswer")


@pytest.mark.parametrize(
    ("use", "args", "error", "match"),
    [
        ("exact_answr", {}, UnknownComponentError, "did you mean 'exact_answer'"),
        ("explorers.rewards.rules:Missing", {}, UnknownComponentError, "has no 'Missing'"),
        ("exact_answer", {"mark": "A:"}, RecipeError, "reward 'exact_answer' cannot be built.*mark"),
        ("answer_format", {"marker": 3}, RecipeError, "cannot be built.*'marker': 3"),
    ],
)
def test_a_reward_that_cannot_be_made_is_refused_by_name(
    use: str, args: dict, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make_reward(use, args)


def test_memory_that_runs_out_is_for_the_process_to_answer() -> None:
    def greedy(task: Task, completion: str) -> float:
        raise MemoryError

    with pytest.raises(MemoryError):
        judge(greedy, reward_kind(greedy, "greedy"), task("1"), "")


@pytest.mark.heavy
def test_math_verify_agrees_with_the_labels_of_real_gsm8k_solutions() -> None:
    rows = solutions(1319)
    written = [
        (row["ground_truth"], row[model]) for row in rows for model in ("6b_finetuning", "6b_verification")
    ]
    reward = MathVerify()
    agree = [reward(task(gold), s["solution"]) == float(s["is_correct"]) for gold, s in written]
    assert len(agree) == 2 * len(rows) == (48 if FULL is None else 2638)
    assert sum(agree) / len(agree) >= 0.995
