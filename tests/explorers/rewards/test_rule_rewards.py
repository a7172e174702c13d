"""The built-in rules, each against an independent reference where there is one."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorers.rewards.final_answer import final_answer, last_boxed
from explorers.rewards.regex import quoted
from explorers.rewards.registry import make_reward
from rft_data.core.errors import RecipeError, UnknownComponentError
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored


def task(answer: str | None = None, **metadata: Any) -> Task:
    return Task("t", ({"role": "user", "content": "?"},), answer=answer, metadata=metadata)


def scored(
    use: str, completion: str, answer: str | None = None, args: dict | None = None, **meta: Any
) -> Any:
    return make_reward(use, args or {})(task(answer, **meta), completion)


# --- where the answer stands -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so <answer> 12 </answer>", "12"),
        ("<answer>1</answer> no, <ANSWER>2</ANSWER>", "2"),
        (r"thus \boxed{\frac{1}{2}} is it", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", r"\boxed{1} then \boxed{2"),
        ("#### 7\nand #### 8 \nbye", "8"),
        ("  plain  ", "plain"),
        (r"#### 3 \boxed{4}", "4"),
    ],
)
def test_the_final_answer_is_the_last_marked_one(completion: str, answer: str) -> None:
    assert final_answer(completion) == answer


def test_with_a_marker_only_what_follows_it_counts() -> None:
    assert final_answer("Answer: 3\nAnswer: 4 \n5", "Answer:") == "4"
    assert final_answer("\\boxed{4}", "Answer:") == ""


@pytest.mark.slow
@given(st.text("{}\\boxed1", max_size=30))
def test_a_box_holds_as_many_opening_as_closing_braces(text: str) -> None:
    found = last_boxed(text)
    if found is not None:
        assert found.count("{") == found.count("}")
        assert "\\boxed{" + found + "}" in text


# --- multiple choice -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        ("C", "C"),
        ("(C)", "C"),
        ("C. twelve", "C"),
        ("C) twelve", "C"),
        ("**C**", "C"),
        ("The answer is C.", "C"),
        ("The answer is (C)", "C"),
        ("the correct answer is: **C**", "C"),
        ("Answer: C", "C"),
        ("answer: c", "C"),
        ("First I thought the answer is A. But the answer is C.", "C"),
        (r"\boxed{C}", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"$\boxed{(C)}$", "C"),
        ("<answer>C</answer>", "C"),
        ("A is wrong and B too\n#### C", "C"),
        ("It cannot be A.\nC", "C"),
        ("Answer: Dogs", None),
        ("A cat sat", None),
        ("A cat sat.\nBut why?", None),
        ("The answer is E", None),
        ("", None),
    ],
)
def test_multiple_choice_finds_the_letter(completion: str, letter: str | None) -> None:
    found = {gold: scored("multiple_choice", completion, gold) for gold in "ABCD"}
    assert found == {gold: float(gold == letter) for gold in "ABCD"}


def test_multiple_choice_needs_a_letter_in_the_task() -> None:
    assert scored("multiple_choice", "C", "because of it\n#### C") == 1.0
    assert scored("multiple_choice", "E", "E", {"options": "ABCDE"}) == 1.0
    assert isinstance(scored("multiple_choice", "C", "twelve"), Unscored)
    assert isinstance(scored("multiple_choice", "C"), Unscored)
    with pytest.raises(RecipeError, match="wanted letters, each once"):
        make_reward("multiple_choice", {"options": "AAB"})


# --- regex -----------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=5))
def test_an_answer_in_a_pattern_is_plain_text(before: str, answer: str, after: str) -> None:
    assert re.fullmatch(quoted(answer), answer)
    whole = {"pattern": "{answer}", "whole": True}
    assert scored("regex", f"{before}{answer}{after}", answer, {"pattern": "{answer}"}) == 1.0
    text = before + answer
    assert scored("regex", text, answer, whole) == float(text.strip() == answer)


@pytest.mark.slow
@given(
    st.sampled_from([r"a+b", r"^\d{2,3}$", r"(?s)x.y", r"(cat|dog)s?", r"[^a-c]", r"(?m)^b$", r"a*?b\b"]),
    st.text("abcxy12\n cdogts", max_size=12),
    st.booleans(),
)
def test_regex_finds_what_pythons_engine_finds(pattern: str, text: str, ignore_case: bool) -> None:
    wanted = re.search(
        pattern.replace("$", r"\Z") if "(?m)" not in pattern else pattern, text, re.I * ignore_case
    )
    args = {"pattern": pattern, "ignore_case": ignore_case}
    assert scored("regex", text, None, args) == float(wanted is not None)


def test_a_pattern_that_would_take_for_ever_elsewhere_is_quick() -> None:
    assert scored("regex", "a" * 5000 + "!", None, {"pattern": "(a+)+$"}) == 0.0


def test_a_pattern_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"cannot be read.*invalid perl operator"):
        make_reward("regex", {"pattern": "(?<!a)b"})
    assert isinstance(scored("regex", "x", None, {"pattern": "{answer}"}), Unscored)


# --- number ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("it is 12", 12.0),
        ("12, no 1,234.5 in all.", 1234.5),
        ("-3e-2", -0.03),
        ("+.5", 0.5),
        ("x2 and 7.", 7.0),
        ("v1.2.3", None),
        ("none", None),
        ("1e999", None),
        ("", None),
        ("costs $90,000", 90000.0),
        ("\\boxed{42} of 50", 42.0),
    ],
)
def test_number_reads_the_last_number(completion: str, value: float | None) -> None:
    assert scored("number", completion, str(42 if value is None else value)) == float(value is not None)


@pytest.mark.slow
@given(
    st.floats(-1e6, 1e6).map(lambda x: round(x, 3)),
    st.floats(-1e6, 1e6).map(lambda x: round(x, 3)),
    st.sampled_from([0.0, 0.5, 1e5]),
    st.sampled_from([0.0, 0.01, 0.5]),
)
def test_number_is_right_within_the_larger_tolerance(
    wanted: float, found: float, absolute: float, relative: float
) -> None:
    args = {"absolute": absolute, "relative": relative}
    near = abs(found - wanted) <= absolute or abs(found - wanted) <= relative * abs(wanted)
    assert scored("number", f"#### {found:f}", f"{wanted:f}", args) == float(near)


def test_number_needs_one_in_the_task() -> None:
    assert isinstance(scored("number", "1", "one"), Unscored)
    with pytest.raises(RecipeError, match="wanted finite numbers >= 0"):
        make_reward("number", {"absolute": math.nan})


# --- JSON ------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ('{"name": "Ada", "age": 36}', 1.0),
        ('Here it is:\n```json\n{"name": "Ada"}\n```\nDone.', 1.0),
        ('```\n{"name": 1}\n```\nno:\n```\n{"name": "x"}\n```', 1.0),
        ('{"name": "Ada", "age": -1}', 0.0),
        ('{"age": 1}', 0.0),
        ('{"name": "Ada", "more": 1}', 0.0),
        ("[]", 0.0),
        ("no JSON", 0.0),
        ('{"name": "Ada", "age": NaN}', 0.0),
        ("[" * 100_000, 0.0),
        ("", 0.0),
    ],
)
def test_json_schema_says_what_the_schema_allows(completion: str, reward: float) -> None:
    assert scored("json_schema", completion, None, {"schema": PERSON}) == reward
    assert scored("json_schema", completion, schema=PERSON) == reward


def test_a_schema_that_is_none_is_an_error_of_the_recipe_or_of_the_task() -> None:
    with pytest.raises(RecipeError, match="cannot be built"):
        make_reward("json_schema", {"schema": {"type": "thing"}})
    assert isinstance(scored("json_schema", "{}"), Unscored)
    assert isinstance(scored("json_schema", "{}", schema={"type": "thing"}), Unscored)


# --- countdown, reasoning-gym ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("94*4 - 61 - 6", 1.0),
        ("<answer>94*4-61-6 = 309</answer>", 1.0),
        ("(94 * 4) - (61 + 6)", 1.0),
        ("94*4 - 61 - 6 + 0", 0.0),
        ("94*4 - 67", 0.0),
        ("309", 0.0),
        ("94**4", 0.0),
        ("94(4)", 0.0),
        ("94/0*4-61-6", 0.0),
        ("__import__('os')", 0.0),
        ("(" * 150, 0.0),
        ("9" * 300, 0.0),
        ("", 0.0),
    ],
)
def test_countdown_computes_the_expression(completion: str, reward: float) -> None:
    assert scored("countdown", completion, numbers=[6, 61, 94, 4], target=309) == reward


def test_countdown_may_leave_numbers_out_and_needs_a_puzzle() -> None:
    some = {"numbers": [1, 2, 3], "target": 5}
    assert scored("countdown", "2 + 3", **some) == 0.0
    assert scored("countdown", "2 + 3", None, {"all_numbers": False}, **some) == 1.0
    assert scored("countdown", "3/2+1/2 + 2", None, {"all_numbers": False}, **some) == 0.0
    assert scored("countdown", "8/(3-8/3)", nums=[8, 3, 8, 3], target=24) == 1.0
    assert isinstance(scored("countdown", "2 + 3"), Unscored)


@pytest.mark.slow
def test_countdown_agrees_with_reasoning_gyms_own_scorer() -> None:
    gym = pytest.importorskip("reasoning_gym")
    asked = 0
    for item in gym.create_dataset("countdown", size=12, seed=3, min_numbers=3, max_numbers=3):
        meta, numbers = item["metadata"], item["metadata"]["numbers"]
        tried = [item["answer"], str(meta["target"]), ""]
        for a, b, c in itertools.permutations(numbers):
            tried += [f"{a} {first} {b} {second} {c}" for first, second in itertools.product("+-*", "+-*")]
        for text in tried[:30]:
            own = scored("countdown", text, item["answer"], numbers=numbers, target=meta["target"])
            theirs = scored("reasoning_gym", text, item["answer"], {"dataset": "countdown"}, **meta)
            assert own == float(theirs == 1.0), (text, meta)
            asked += 1
    assert asked == 360


@pytest.mark.slow
def test_reasoning_gym_scores_every_answer_of_its_own_as_right() -> None:
    gym = pytest.importorskip("reasoning_gym")
    for name in ("chain_sum", "letter_counting", "basic_arithmetic"):
        for item in gym.create_dataset(name, size=3, seed=1):
            given = scored("reasoning_gym", f"#### {item['answer']}", item["answer"], **item["metadata"])
            assert given == 1.0
            assert scored("reasoning_gym", "#### nonsense", item["answer"], **item["metadata"]) < 0.5


def test_reasoning_gym_says_what_a_task_must_keep() -> None:
    with pytest.raises(UnknownComponentError, match="did you mean 'countdown'"):
        make_reward("reasoning_gym", {"dataset": "countdwn"})
    found = scored("reasoning_gym", "1+1", "1+1", {"dataset": "countdown"})
    assert isinstance(found, Unscored)
    assert "metadata" in found.reason
    assert isinstance(scored("reasoning_gym", "1"), Unscored)
