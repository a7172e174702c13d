from typing import Any

import pytest

from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A small tokenizer with the chat template of Qwen2.5, which has tools."""
    made = trained_tokenizer()
    made.chat_template = QWEN25
    return made
