"""N-grams of many rows at once, against a plain loop."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.similarity.shingles import blocks, shingles, text_hashes

word = st.sampled_from(["a", "b", "C", "c", "é", "18", "x=y"])
texts = st.lists(st.lists(word, max_size=12).map("  ".join), min_size=1, max_size=8)


def plain(text, n):
    words = text.lower().split()
    if not words:
        return []
    return [tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))]


@pytest.mark.slow
@given(texts=texts, n=st.integers(1, 7))
@settings(deadline=None, max_examples=150)
def test_hashes_are_equal_where_ngrams_are(texts, n):
    table = pa.table({"text": pa.array([f" {text}\n" for text in texts])})
    found = shingles(table, "text", n)
    wanted = [gram for text in texts for gram in plain(text, n)]
    assert found.counts.tolist() == [len(plain(text, n)) for text in texts]
    assert len(set(zip(wanted, found.hashes.tolist(), strict=True))) == len(set(wanted))
    assert len(set(found.hashes.tolist())) == len(set(wanted))
    assert found.by_row(np.arange(len(texts))).tolist() == [
        row for row, text in enumerate(texts) for _ in plain(text, n)
    ]


def test_only_completion_tokens_count():
    ids = pa.array([[1, 2, 3, 4], [9, 9, 3, 4], None, []], pa.list_(pa.int32()))
    table = pa.table({"token_ids": ids, "prompt_length": [2, 2, 0, 0]})
    found = shingles(table, "token_ids", 2)
    assert found.counts.tolist() == [1, 1, 0, 0]
    assert found.hashes[0] == found.hashes[1]
    whole = shingles(table.drop_columns("prompt_length"), "token_ids", 2)
    assert whole.counts.tolist() == [3, 3, 0, 0]


def test_hashes_are_the_same_everywhere_and_for_ever():
    found = shingles(pa.table({"text": ["The answer is 18"]}), "text", 3)
    assert found.hashes.tolist() == GOLDEN
    assert text_hashes(pa.array(["a", "a", "b"])).tolist()[0] == text_hashes(pa.array(["a"])).tolist()[0]


GOLDEN = [6711266111437555845, 11252534565196717635]


@pytest.mark.slow
def test_white_space_at_the_end_is_no_part_of_the_last_word():
    texts = pa.table({"text": ["a b\n"]})
    wanted = shingles(pa.table({"text": ["a b"]}), "text", 1).hashes.tolist()
    assert all(shingles(texts, "text", 1).hashes.tolist() == wanted for _ in range(300))


def test_missing_text_is_an_empty_one_and_slices_are_themselves():
    table = pa.table({"text": pa.array(["x y", None, "", "   ", "y z"])})
    assert shingles(table, "text", 1).counts.tolist() == [2, 0, 0, 0, 2]
    assert shingles(table.slice(4), "text", 1).hashes[0] == shingles(table, "text", 1).hashes[1]
    chunked = pa.concat_tables([table, table])
    assert shingles(chunked, "text", 1).counts.tolist() == [2, 0, 0, 0, 2] * 2
    assert [part.num_rows for part in blocks(chunked, "text")] == [10]


def test_other_columns_are_refused():
    with pytest.raises(ValueError, match="wanted text, or lists of integers"):
        shingles(pa.table({"reward": [1.0]}), "reward", 2)
