"""Images in a recorded conversation: one placeholder is asked for each, the row has what the model saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from explorers.conversations.model import Model
from explorers.conversations.template import ChatTemplate
from explorers.meter import Meter, metered
from rft_data.core.canonical import bytes_id
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import EngineError
from rft_data.core.images import PROCESSOR, image_part
from rft_data.core.rows import Task
from rft_data.core.words import RowSource
from rft_data.core.workflow import RolloutContext

FIRST, SECOND = bytes_id(b"first"), bytes_id(b"second")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ '*' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLACES = 3
"""Tokens that an image takes in what the model sees."""


class SeeingEngine:
    """Puts PLACES placeholders where it is given one, as vLLM does."""

    version = 1

    def __init__(self, placeholder: int, end: int) -> None:
        self._placeholder, self._end = placeholder, end
        self.asked: list[tuple[list[int], tuple[str, ...]]] = []

    def images_from(self, fetch: Callable[[str], bytes]) -> None:
        pass

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Completion:
        self.asked.append((list(prompt_ids), tuple(images)))
        seen = [one for i in prompt_ids for one in [i] * (PLACES if i == self._placeholder else 1)]
        said = [40, 41, self._end]
        return Completion(said, [-1.0] * 3, "stop", [(1, 0, 3)], seen if images else None, "how")


def asked(*names: str) -> dict[str, Any]:
    return {"role": "user", "content": [*map(image_part, names), {"type": "text", "text": "?"}]}


CONTEXT = RolloutContext("run", "g", 0, 0, "e", RowSource.ROLLOUT, Sampling(8))


def test_each_turn_asks_one_placeholder_for_an_image_and_the_row_has_what_was_seen(
    template_of: Callable[..., ChatTemplate],
) -> None:
    template = template_of(TEMPLATE)
    [placeholder] = template.ids("*")
    [end] = template.ids("<|im_end|>")
    engine = SeeingEngine(placeholder, end)
    model = Model(engine, template, Sampling(8))
    first = asked(FIRST)
    said = asyncio.run(model.chat([first])).message
    asyncio.run(model.chat([first, said, asked(SECOND, FIRST)]))
    [row] = model.rows(Task("t", (first,), "a"), CONTEXT)
    (one, shown), (two, both) = engine.asked
    assert (shown, both) == ((FIRST,), (FIRST, SECOND, FIRST))
    assert (one.count(placeholder), two.count(placeholder)) == (1, 3)
    assert row.token_ids is not None
    assert row.action_mask is not None
    assert list(row.token_ids).count(placeholder) == 3 * PLACES
    assert [i for i, sampled in zip(row.token_ids, row.action_mask, strict=True) if sampled] == [
        40,
        41,
        end,
    ] * 2
    assert row.payloads == (FIRST, SECOND, FIRST)
    assert row.metadata[PROCESSOR] == "how"


def test_a_text_row_says_nothing_of_images(template_of: Callable[..., ChatTemplate]) -> None:
    template = template_of(TEMPLATE)
    engine = SeeingEngine(*template.ids("*"), *template.ids("<|im_end|>"))
    model = Model(engine, template, Sampling(8))
    asyncio.run(model.chat([{"role": "user", "content": "hi"}]))
    [row] = model.rows(Task("t", (), "a"), CONTEXT)
    assert (row.payloads, row.metadata) == ((), {})
    assert engine.asked[0][1] == ()


class BlindEngine:
    """An engine as there were before images."""

    version = 1

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        return Completion([1], [0.0], "stop", [(1, 0, 1)])


def test_an_engine_that_takes_no_images_is_asked_as_before_and_refuses_them_clearly() -> None:
    engine = metered(BlindEngine(), Meter())  # type: ignore[arg-type] - as users write them
    assert asyncio.run(engine.generate([1], Sampling(1))).token_ids == [1]
    with pytest.raises(EngineError, match="engine BlindEngine takes none; use engine vllm"):
        asyncio.run(engine.generate([1], Sampling(1), [FIRST]))
