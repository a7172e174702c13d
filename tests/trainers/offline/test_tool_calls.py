"""Tool calls for which a chat template has no place are not lost in silence."""

import json
import logging
from typing import Any

import pyarrow as pa
import pytest

from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from trainers.offline.sft import sft_dataset

BARE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


@pytest.mark.parametrize(("template", "lost"), [(BARE, True), (QWEN25, False)])
def test_sft_warns_of_calls_that_the_template_does_not_render(
    template: str, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer: Any = trained_tokenizer()
    tokenizer.chat_template = template
    answer = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    row = {
        "experience_id": "e",
        "token_ids": None,
        "action_mask": None,
        "messages": json.dumps([{"role": "user", "content": "add"}, answer]),
        "prompt_messages": 1,
        "tools": json.dumps([CALL]),
        "metadata": "{}",
    }
    lists = {name: pa.list_(pa.int32()) for name in ("token_ids", "action_mask")}
    kinds = {"experience_id": pa.string(), **lists, "messages": pa.string(), "prompt_messages": pa.int64()}
    schema = pa.schema({**kinds, "tools": pa.string(), "metadata": pa.string()})
    with caplog.at_level(logging.WARNING):
        sft_dataset(pa.Table.from_pylist([row], schema), tokenizer)
    assert ("1 of 1 rows have tool calls" in caplog.text) is lost
