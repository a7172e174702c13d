"""repetition_filter against a plain loop of seq-rep-n, and on GSM8K's real solutions."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from ops.similarity.repetition_filter import repeated_share
from tests.ops.real_rollouts import gsm8k_rollouts, stored

text = st.lists(st.sampled_from("abc"), max_size=30).map(" ".join)


def plain_share(words, n):
    grams = [tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))] if words else []
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@pytest.mark.slow
@given(texts=st.lists(text, min_size=1, max_size=10), n=st.integers(1, 5))
@settings(deadline=None, max_examples=100)
def test_share_equals_the_formula(texts, n):
    got = repeated_share(pa.table({"completion_text": texts}), "completion_text", n)
    assert got == pytest.approx([plain_share(text.split(), n) for text in texts])


def test_judges_more_rows_than_a_block(operator):
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 4, rng.integers(0, 40)).tolist() for _ in range(1300)]
    table = pa.table({"token_ids": pa.array(ids, pa.list_(pa.int32()))})
    judgement = operator("repetition_filter", n=2, max_share=0.4, column="token_ids").judge(table)
    assert judgement.keep.tolist() == [plain_share(row, 2) <= 0.4 for row in ids]
    assert len(judgement.reasons) == (~judgement.keep).sum() > 100


def test_prompt_tokens_do_not_count(operator):
    table = pa.table(
        {"token_ids": pa.array([[7] * 20 + [1, 2, 3]], pa.list_(pa.int32())), "prompt_length": [20]}
    )
    assert operator("repetition_filter", n=1, column="token_ids").judge(table).keep.tolist() == [True]


@pytest.mark.slow
def test_real_solutions_stay_and_looping_ones_go():
    table = stored(gsm8k_rollouts(600))
    texts = table["completion_text"].to_pylist()
    loops = {row: texts[row] + " so the answer is" * 60 for row in range(0, len(texts), 7)}
    looping = [loops.get(row, text) for row, text in enumerate(texts)]
    place = table.column_names.index("completion_text")
    table = table.set_column(place, table.schema.field(place), pa.array(looping))
    made = OperatorPipeline([{"repetition_filter": {}}], name="experience_ops").run(table)
    dropped = {row for row, verdict in enumerate(made["verdict"].to_pylist()) if verdict == "dropped"}
    natural = {row for row, text in enumerate(texts) if plain_share(text.lower().split(), 4) > 0.5}
    assert dropped == set(loops) | natural
    assert len(natural) <= 0.03 * len(texts)
    assert "of its 4-grams are repeats, above 0.5" in made["reason"][min(loops)].as_py()


def test_empty_and_short_texts_stay(operator):
    table = pa.table({"completion_text": pa.array(["", "a a a", None])})
    assert operator("repetition_filter").judge(table).keep.all()
    assert operator("repetition_filter").judge(table.slice(0, 0)).keep.tolist() == []


@pytest.mark.parametrize("args", [{"n": 0}, {"max_share": 1.0}, {"max_share": -0.1}])
def test_arguments_out_of_range_are_refused(operator, args):
    with pytest.raises(ValueError, match=r"wanted n >= 1 and max_share in \[0, 1\)"):
        operator("repetition_filter", **args)
