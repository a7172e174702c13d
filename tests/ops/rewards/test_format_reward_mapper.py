"""format_reward_mapper: rules against Python's own matching, hostile text, and GSM8K's real solutions."""

import re
import time

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.canonical import canonical_json
from rft_data.core.errors import OperatorError
from tests.ops.real_rollouts import gsm8k_rollouts, stored

R1 = re.compile(r"\s*<think>(?P<t>.*?)</think>\s*<answer>(?P<a>.*?)</answer>\s*", re.DOTALL)
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
piece = st.sampled_from([*TAGS, "\n", " ", "x", "é y"])


def rewards(op, texts):
    return op.process_table(pa.table({"completion_text": pa.array(texts, pa.string())}))[
        "format_reward"
    ].to_pylist()


def r1(text):
    """DeepSeek-R1's rule, by Python's re."""
    found = R1.fullmatch(text)
    once = all(text.count(tag) == 1 for tag in TAGS)
    return float(bool(found and once and found["t"].strip() and found["a"].strip()))


@pytest.mark.slow
@given(texts=st.lists(st.lists(piece, max_size=9).map("".join), min_size=1, max_size=20))
@settings(deadline=None, max_examples=150)
def test_tags_are_judged_as_by_their_definition(operator, texts):
    texts = [*texts, "<think>x</think>\n<answer>é y</answer>", "<think>x</think><answer> </answer>"]
    assert rewards(operator("format_reward_mapper", tags=["think", "answer"]), texts) == list(map(r1, texts))


def boxed(text):
    """Exactly one box, its braces balanced, something in it; by counting."""
    if text.count("\\boxed{") != 1:
        return 0.0
    start = text.index("\\boxed{") + 7
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return float(place > start)
    return 0.0


@pytest.mark.slow
@given(parts=st.lists(st.sampled_from(["\\boxed{", "{", "}", "7", "\\frac"]), max_size=10))
@settings(deadline=None, max_examples=200)
def test_boxes_are_judged_as_by_counting_braces(operator, parts):
    text = "".join(parts)
    assert rewards(operator("format_reward_mapper", boxed=True), [text]) == [boxed(text)]


def test_deep_fractions_are_boxed(operator):
    text = r"so \boxed{\frac{\sqrt{a_{1}}}{b}} it is"
    assert rewards(operator("format_reward_mapper", boxed=True), [text]) == [1.0]


def test_all_rules_must_hold(operator):
    op = operator("format_reward_mapper", tags=["think"], pattern=r"\d")
    texts = ["<think>7</think>", "<think>x</think>", "7", "", None]
    assert rewards(op, texts) == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.slow
def test_real_solutions_that_end_with_their_answer():
    table = stored(gsm8k_rollouts(500))
    pattern = r"\nA: [^\n]+\z"
    ops = [{"format_reward_mapper": {"pattern": pattern, "weight": 0.25}}]
    made = OperatorPipeline(ops, name="experience_ops").run(table)
    texts, given_rewards = table["completion_text"].to_pylist(), table["reward"].to_pylist()
    kept = [float(re.search(r"\nA: [^\n]+\Z", text) is not None) for text in texts]
    assert made["stats"].to_pylist() == [canonical_json({"format_reward": value}) for value in kept]
    wanted = [reward + 0.25 * value for reward, value in zip(given_rewards, kept, strict=True)]
    assert made["shaped_reward"].to_pylist() == wanted
    assert 0.5 < sum(kept) / len(kept) <= 1


def test_weight_adds_to_the_shaped_reward_and_never_invents_one(operator):
    table = pa.table(
        {
            "completion_text": ["7", "x", "7"],
            "reward": pa.array([1.0, 1.0, None], pa.float32()),
            "shaped_reward": pa.array([None, 0.5, None], pa.float32()),
        }
    )
    out = operator("format_reward_mapper", pattern="7", weight=-0.5).process_table(table)
    assert out["shaped_reward"].to_pylist() == [0.5, 0.5, None]
    alone = operator("format_reward_mapper", pattern="7").process_table(table)
    assert alone["shaped_reward"].to_pylist() == [None, 0.5, None]


def test_a_weight_needs_a_reward_and_no_weight_needs_none(experiences):
    table = experiences(["g"], [1.0], ["x"]).drop_columns(["reward"])
    with pytest.raises(OperatorError, match="needs column 'reward'"):
        judged(table, pattern="x", weight=1.0)
    assert judged(table, pattern="x")["verdict"].to_pylist() == ["kept"]


def judged(table, **args):
    return OperatorPipeline([{"format_reward_mapper": args}], name="experience_ops").run(table)


def test_a_pattern_that_explodes_elsewhere_is_linear_here(operator):
    op = operator("format_reward_mapper", pattern=r"\A(a+)+\z")
    start = time.perf_counter()
    assert rewards(op, ["a" * 100_000 + "b", "a" * 100_000]) == [0.0, 1.0]
    assert time.perf_counter() - start < 60  # Python's re would need longer than the age of the universe


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "no rule is given"),
        ({"tags": ["a b"]}, "wanted distinct names"),
        ({"tags": ["a", "a"]}, "wanted distinct names"),
        ({"pattern": "(?=x)"}, "Invalid regular expression"),
        ({"pattern": r"(a)\1"}, "Invalid regular expression"),
        ({"pattern": "x", "weight": float("nan")}, "wanted a finite number"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused(operator, args, message):
    with pytest.raises(ValueError, match=message):
        operator("format_reward_mapper", **args)
