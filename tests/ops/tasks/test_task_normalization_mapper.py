"""Normalised prompts: one spelling, nothing that a reader could tell apart is lost, twice is once."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.hygiene import registry
from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.rows import Task
from rft_data.tasks.table import prompt_text, task_table
from tests.gsm8k import FOLDER
from tests.jsonl import jsonl_tasks


def normalised(op, *messages: dict) -> list[dict]:
    table = op.process_table(task_table([Task("t", messages)]))
    made = json.loads(table["messages"][0].as_py())
    assert table["text"][0].as_py() == prompt_text(made)
    return made


def user(content) -> dict:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  two\r\nlines\r", "two\nlines"),
        ("a\u00a0b\u3000c\u2009d", "a b c d"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("cafe\u0301", "caf\u00e9"),
        ("code:\n    x  =  1   \n\n\n\ny", "code:\n    x  =  1\n\ny"),
        ("ﬁ", "ﬁ"),
    ],
)
def test_spelling(operator, before, after):
    assert normalised(operator("task_normalization_mapper"), user(before)) == [user(after)]


def test_prompts_are_stored_as_they_are_read(operator):
    table = operator("task_normalization_mapper").process_table(task_table([Task("t", (user("caf\u00e9"),))]))
    assert "caf\u00e9" in table["messages"][0].as_py()


def test_compatible_forms_are_joined_when_asked(operator):
    assert normalised(operator("task_normalization_mapper", form="NFKC"), user("ﬁ１２")) == [user("fi12")]
    with pytest.raises(ValueError, match="wanted 'NFC' or 'NFKC'"):
        operator("task_normalization_mapper", form="NFD")


def test_roles_are_renamed_and_empty_messages_go(operator):
    made = normalised(
        operator("task_normalization_mapper"),
        {"role": "System", "content": " "},
        {"role": "human", "content": "Hi"},
        {"role": "GPT", "content": "Yes?", "name": "x"},
        user([{"type": "text", "text": " look "}, {"type": "image", "image": "a.png"}]),
    )
    assert made == [
        user("Hi"),
        {"role": "assistant", "content": "Yes?", "name": "x"},
        user([{"type": "text", "text": "look"}, {"type": "image", "image": "a.png"}]),
    ]


def test_an_empty_prompt_is_quarantined_and_an_edited_text_is_taken_over():
    pipeline = OperatorPipeline([{"task_normalization_mapper": {}}], name="task_ops", text_column="text")
    table = task_table([Task("t", (user(" \u200b"),)), Task("t", (user("Why "),))])
    verdicts = pipeline.run_tasks(table)
    assert verdicts.kept.tolist() == [1]
    assert "the prompt is empty" in verdicts.reports[0].quarantined[0]
    edited = table.set_column(2, "text", pa.array(["Who?  ", "Why "]))
    assert pipeline.run_tasks(edited).table["text"].to_pylist() == ["Who?", "Why"]


@pytest.mark.parametrize(
    "encoded",
    [
        '{"content": "x"}',
        '[{"role": "user", "content": "x"}, {"role": "user"}]',
        '[{"role": "user", "content": "x"}, "content"]',
    ],
)
def test_what_is_no_list_of_messages_is_refused(operator, encoded):
    table = task_table([Task("t", (user("x"),))])
    table = table.set_column(table.schema.get_field_index("messages"), "messages", pa.array([encoded]))
    with pytest.raises(ValueError, match="wanted a list of messages with 'content'"):
        operator("task_normalization_mapper").process_table(table)


def test_an_edited_text_is_the_content_of_a_single_message_only(operator):
    table = task_table([Task("t", (user("x"), user("y")))])
    edited = table.set_column(table.schema.get_field_index("text"), "text", pa.array(["z"]))
    with pytest.raises(ValueError, match="the text of a prompt of 2 messages was edited"):
        operator("task_normalization_mapper").process_table(edited)


@pytest.mark.slow
@given(st.text(max_size=60), st.sampled_from(["NFC", "NFKC"]))
def test_twice_is_once(text, form):
    op = registry().modules["task_normalization_mapper"](form=form)
    try:
        once = normalised(op, user(text))
    except ValueError:
        return
    assert normalised(op, *once) == once


@pytest.mark.slow
def test_real_questions_keep_their_words(operator):
    path = FOLDER / "test.jsonl"
    tasks = jsonl_tasks(path, heldout=0)
    before = task_table(tasks)
    after = operator("task_normalization_mapper").process_table(before)
    pairs = list(zip(before["text"].to_pylist(), after["text"].to_pylist(), strict=True))
    assert all("".join(one.split()) == "".join(two.split()) for one, two in pairs)
    assert any(one != two for one, two in pairs)
