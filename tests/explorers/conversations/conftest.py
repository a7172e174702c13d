"""One tokenizer for all families of templates, and an engine that says what a test wants."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from transformers import Qwen2Tokenizer

from explorers.conversations.model import Model
from explorers.conversations.template import ChatTemplate
from rft_data.core.engine import Completion, Sampling
from rft_data.core.rows import Task
from rft_data.core.workflow import RolloutContext
from tests.explorers.conversations.families import FAMILIES, SPECIAL
from trainers.models.tiny_model import train_tokenizer

END = "<|endoftext|>"
TEXTS = [
    "hello there, how are you? fine.\n\n",
    "assistant\nuser\nsystem\nmodel\n\n",
    "the answer is 12 + 30 = 42.\n",
]


def trained_tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE with merges of words and of line breaks, and the special tokens of all families."""
    tokenizer = train_tokenizer(TEXTS, [END, *SPECIAL], vocab_size=400)
    tokenizer.eos_token = END
    return tokenizer


@pytest.fixture(scope="session")
def core() -> Qwen2Tokenizer:
    return trained_tokenizer()


@pytest.fixture(scope="session")
def template_of(core: Qwen2Tokenizer) -> Callable[..., ChatTemplate]:
    def made(family: str, **arguments: Any) -> ChatTemplate:
        tokenizer = copy.copy(core)
        tokenizer.chat_template = FAMILIES.get(family, family)
        return ChatTemplate(tokenizer, arguments)

    return made


class SayingEngine:
    """Answers each prompt with the next text; keeps what it saw and what it said."""

    version = 3

    def __init__(self, tokenizer: Any, texts: Sequence[str | tuple[str, str]]) -> None:
        self._tokenizer = tokenizer
        self._texts = list(texts)
        self.seen: list[list[int]] = []
        self.said: list[list[int]] = []
        self.sampling: list[Sampling] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        given = self._texts.pop(0)
        text, finish = given if isinstance(given, tuple) else (given, "stop")
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        self.seen.append(list(prompt_ids))
        self.said.append(ids)
        self.sampling.append(sampling)
        n = len(self.seen)
        return Completion(ids, [-0.1 * n - 0.01 * i for i in range(len(ids))], finish, [(n, 0, len(ids))])


@pytest.fixture
def saying() -> Callable[..., tuple[SayingEngine, Model]]:
    def made(
        template: ChatTemplate, *texts: str | tuple[str, str], **changes: Any
    ) -> tuple[SayingEngine, Model]:
        engine = SayingEngine(template.tokenizer, texts)
        return engine, Model(engine, template, Sampling(64), **changes)

    return made


TASK = Task("chats", ({"role": "user", "content": "hello"},), answer="42")
CONTEXT = RolloutContext("run", "g", 1, 0, "e0", "rollout", Sampling(64))
