"""Decontamination: equal prompts and shared n-grams are found, by name; templates and held-out tasks stay."""

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.similarity.word_ngrams import split_words
from rft_data.core.errors import MissingFileError, RowError
from rft_data.tasks.table import task_table
from tests.gsm8k import FOLDER
from tests.jsonl import jsonl_tasks


def tasks(*rows: tuple[str, str], answers: list[str] | None = None) -> pa.Table:
    """(split, text) of each row."""
    return pa.table(
        {
            "taskset": ["set"] * len(rows),
            "task_id": [f"t{n}" for n in range(len(rows))],
            "text": pa.array([text for _, text in rows], pa.string()),
            "split": pa.array([split for split, _ in rows], pa.string()),
            "answer": pa.array(answers or ["1"] * len(rows), pa.string()),
        }
    )


def judged(op, table: pa.Table) -> tuple[list[int], list[str]]:
    judgement = op.judge(table)
    return np.flatnonzero(~judgement.keep).tolist(), list(judgement.reasons)


WORDS = " ".join(f"w{n}" for n in range(20))


def test_thirteen_words_in_a_row_are_contamination_and_twelve_are_not(operator):
    op = operator("task_decontamination_filter")
    thirteen = " ".join(f"W{n}," for n in range(4, 17))
    twelve = " ".join(f"w{n}" for n in range(4, 16))
    table = tasks(
        ("train", f"Now: {thirteen} and more"), ("heldout", WORDS), ("train", f"Now {twelve} and more")
    )
    dropped, [reason] = judged(op, table)
    assert dropped == [0]
    assert reason == (
        "shares the 13-gram 'w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16' with evaluation task set/t1"
    )
    assert judged(operator("task_decontamination_filter", n=12), table)[0] == [0, 2]


def test_a_short_evaluation_prompt_is_found_when_it_is_the_whole_prompt(operator):
    table = tasks(
        ("heldout", "What is  2 + 3?"),
        ("train", "what is 2 + 3?"),
        ("train", "What is 2 - 3?"),
        ("train", "WHAT is 2 +\n3?"),
        ("train", "Why? What is 2 + 3?"),
        answers=["5", "5", "-1", "6", "5"],
    )
    dropped, reasons = judged(operator("task_decontamination_filter"), table)
    assert dropped == [1, 3]
    assert reasons == [
        "has the prompt of evaluation task set/t0, with the same answer",
        "has the prompt of evaluation task set/t0, with another answer",
    ]


def test_a_phrase_of_the_template_is_no_contamination(operator):
    template = "please reason step by step and put your final answer within a box at the end"
    rows = [("heldout", f"alpha {template}"), *(("train", f"task{n} {template}") for n in range(11))]
    assert judged(operator("task_decontamination_filter"), tasks(*rows))[0] == []
    assert judged(operator("task_decontamination_filter"), tasks(*rows[:11]))[0] == list(range(1, 11))
    assert judged(operator("task_decontamination_filter", max_matches=1), tasks(*rows[:11]))[0] == []
    same = [*rows, ("train", rows[0][1])]
    assert judged(operator("task_decontamination_filter"), tasks(*same))[0] == [12]


def test_nothing_to_compare_drops_nothing(operator):
    op = operator("task_decontamination_filter")
    assert judged(op, tasks(("train", WORDS), ("train", WORDS)))[0] == []
    assert judged(op, tasks(("heldout", WORDS), ("heldout", WORDS)))[0] == []
    assert judged(op, tasks(("heldout", ""), ("train", ""), ("train", "  "), ("train", WORDS)))[0] == []
    assert judged(op, tasks())[0] == []
    assert judged(op, tasks(("heldout", WORDS), ("train", WORDS)).drop_columns(["split", "answer"]))[0] == []


def test_scripts_without_spaces_are_compared_by_character(operator):
    text = "小明有五个苹果他又买了三个苹果现在他一共有几个苹果"
    op = operator("task_decontamination_filter")
    assert judged(op, tasks(("heldout", text), ("train", "请问" + text[:20]), ("train", text[:9])))[0] == [1]


def test_named_files_are_evaluation_tasks(operator, tmp_path: Path):
    file = tmp_path / "eval.jsonl"
    file.write_text(json.dumps({"problem": WORDS, "solution": "1"}) + "\n")
    op = operator("task_decontamination_filter", files=[str(file)], prompt="problem", reference="solution")
    dropped, [reason] = judged(op, tasks(("train", f"x {WORDS}"), ("train", "other")))
    assert dropped == [0]
    assert reason.endswith(f"with evaluation task {file}:1")
    with pytest.raises(MissingFileError, match="there is no file"):
        operator("task_decontamination_filter", files=[str(tmp_path / "none.jsonl")])
    with pytest.raises(RowError, match="there is no field 'question'"):
        operator("task_decontamination_filter", files=[str(file)])


@pytest.mark.parametrize("args", [{"n": 0}, {"max_matches": 0}])
def test_numbers_below_one_are_refused(operator, args):
    with pytest.raises(ValueError, match="at least 1"):
        operator("task_decontamination_filter", **args)


def plain_words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFC", text).casefold())


@pytest.mark.slow
@given(
    texts=st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), max_size=6),
    n=st.integers(1, 4),
)
def test_ngrams_are_those_of_a_plain_loop(texts, n):
    (nothing, words), spelled = split_words([], texts)
    assert len(nothing.ngrams(n).hashes) == 0
    assert spelled.take(pa.array(words.numbers)).to_pylist() == plain_words(" ".join(texts))
    grams = words.ngrams(n)
    wanted = [
        (place, tuple(plain_words(text)[at : at + n]))
        for place, text in enumerate(texts)
        for at in range(len(plain_words(text)) - n + 1)
    ]
    assert grams.text.tolist() == [place for place, _ in wanted]
    by_hash: dict[int, tuple[str, ...]] = {}
    for value, (_, gram) in zip(grams.hashes.tolist(), wanted, strict=True):
        assert by_hash.setdefault(value, gram) == gram
    assert len(by_hash) == len({gram for _, gram in wanted})


@pytest.mark.slow
def test_real_questions_hit_what_a_plain_loop_hits(operator):
    """GSM8K's own test questions, a fifth held out, with copies and embedded questions planted."""
    path = FOLDER / "test.jsonl"
    real = jsonl_tasks(path, heldout=0.2)
    table = task_table(real)
    held = [row for row in range(len(real)) if real[row].split == "heldout"][:20]
    texts = table["text"].to_pylist()
    planted = [f"Here is a puzzle. {texts[row].upper()} Answer in one word." for row in held]
    more = pa.table(
        {
            "taskset": ["bad"] * len(held),
            "task_id": [f"p{row}" for row in held],
            "text": planted,
            "split": ["train"] * len(held),
        }
    )
    both = pa.concat_tables([table.select(more.column_names), more])
    dropped, _ = judged(operator("task_decontamination_filter"), both)
    evaluated: set[tuple[str, ...]] = set()
    for text, split in zip(texts, table["split"].to_pylist(), strict=True):
        words = plain_words(text)
        if split == "heldout":
            evaluated |= {tuple(words[at : at + 13]) for at in range(len(words) - 12)}
    wanted = []
    for row, (text, split) in enumerate(
        zip(both["text"].to_pylist(), both["split"].to_pylist(), strict=True)
    ):
        words = plain_words(text)
        shared = evaluated & {tuple(words[at : at + 13]) for at in range(len(words) - 12)}
        if split == "train" and shared:
            wanted.append(row)
    assert dropped == wanted
    long_enough = [n for n, row in enumerate(held) if len(plain_words(texts[row])) >= 13]
    assert {len(real) + n for n in long_enough} <= set(dropped)
