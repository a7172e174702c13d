"""Tool calls for which a chat template has no place are not lost in silence."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core.rows import PreferencePair
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from trainers.offline.offline_stage import pair_tokens, row_answers
from trainers.offline.sft import sft_dataset

BARE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


TEMPLATES = pytest.mark.parametrize(("template", "lost"), [(BARE, True), (QWEN25, False)])
ANSWER = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def answer_rows() -> pa.Table:
    row = {
        "experience_id": "e",
        "token_ids": None,
        "action_mask": None,
        "messages": json.dumps([{"role": "user", "content": "add"}, ANSWER]),
        "prompt_messages": 1,
        "tools": json.dumps([CALL]),
        "metadata": "{}",
    }
    lists = {name: pa.list_(pa.int32()) for name in ("token_ids", "action_mask")}
    kinds = {"experience_id": pa.string(), **lists, "messages": pa.string(), "prompt_messages": pa.int64()}
    return pa.Table.from_pylist([row], pa.schema({**kinds, "tools": pa.string(), "metadata": pa.string()}))


@TEMPLATES
@pytest.mark.parametrize("read", [sft_dataset, row_answers])
def test_rows_whose_calls_the_template_does_not_render_are_warned_of(
    read: Callable[[pa.Table, Any], object], template: str, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer: Any = trained_tokenizer()
    tokenizer.chat_template = template
    with caplog.at_level(logging.WARNING):
        read(answer_rows(), tokenizer)
    assert ("1 of 1 rows have tool calls" in caplog.text) is lost


@TEMPLATES
@pytest.mark.parametrize("whole", [False, True])
def test_pairs_whose_calls_the_template_does_not_render_are_warned_of(
    whole: bool, template: str, lost: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer: Any = trained_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "model")
    asked = [{"role": "user", "content": "add"}]
    earlier = [
        *asked,
        {**ANSWER, "tool_calls": [{**CALL, "function": {"name": "past", "arguments": {}}}]},
        *asked,
    ]
    answers = [ANSWER], [{"role": "assistant", "content": "no"}]
    if whole:  # an earlier call of the prompt is no answer
        pair = PreferencePair("me", "t", "one", [*earlier, *answers[0]], [*earlier, *answers[1]])
    else:
        pair = PreferencePair("me", "t", "one", *answers, messages=asked)
    with Buffer(tmp_path / "buffer") as buffer, caplog.at_level(logging.WARNING):
        pair_tokens(buffer, [pair], tmp_path / "model")
    assert ("1 of 1 rows have tool calls" in caplog.text) is lost
