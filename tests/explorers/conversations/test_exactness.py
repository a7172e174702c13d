"""For random conversations, templates, cuts and drift: rows are what the engine saw and what it sampled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from explorers.conversations.model import Model
from explorers.conversations.template import ChatTemplate
from explorers.engines.transformers_engine import TransformersEngine
from explorers.workflows.rollouts import check_rows
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import RowError
from rft_data.core.files import write_manifest
from rft_data.core.rows import Experience, WeightRef
from rft_data.core.words import Drift, TemplatePolicy
from tests.explorers.conversations.conftest import CONTEXT, TASK
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import load_tokenizer, publishable

FAMILY = ["qwen2.5", "qwen3", "llama3", "empty_thinking", "counting"]
ENDS = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>"]
SAID = [
    "fine.", "\n\n", " 42", "é✓", "<think>", "</think>\n\n", "<tool_call>\n", "add(a=1)", "```tool_code\n",
    '{"name": "add", "arguments": {"a": 1}}', "\n</tool_call>", "<|im_start|>user\n", "",
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


class RandomEngine:
    """Samples fragments and random ids; the logprob of every sampled token is another number."""

    version = 0

    def __init__(self, tokenizer: Any, draw: random.Random) -> None:
        self._tokenizer, self._draw = tokenizer, draw
        self.calls: list[tuple[list[int], list[int]]] = []
        self.place: dict[float, tuple[int, int]] = {}

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        draw, call = self._draw, len(self.calls)
        text = "".join(draw.choices(SAID, k=draw.randint(0, 5)))
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [draw.randrange(13, len(self._tokenizer)) for _ in range(draw.choice([0, 0, 0, 3]))]
        finish = draw.choice(["stop", "stop", "length"])
        if finish == "stop":
            ids += [self._tokenizer.convert_tokens_to_ids(draw.choice(ENDS))]
        ids = ids or [20]
        self.calls.append((list(prompt_ids), ids))
        logprobs = [-float(len(self.place) + n + 1) for n in range(len(ids))]
        self.place.update({logprob: (call, n) for n, logprob in enumerate(logprobs)})
        await asyncio.sleep(0)
        return Completion(ids, logprobs, finish, [(call, 0, len(ids))])


def changed(message: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """A turn as a caller might have it."""
    content = message["content"]
    how = draw.choice(["same", "same", "trimmed", "no thinking", "longer", "cut", "other", "json"])
    if how == "no thinking":
        return {key: value for key, value in message.items() if key != "reasoning_content"}
    if how == "json":
        calls = [
            {**call, "function": {**call["function"], "arguments": '{ "a":1 }'}}
            for call in message.get("tool_calls", [])
        ]
        return {**message, "tool_calls": calls} if calls else message
    texts = {"trimmed": content.strip(), "longer": content + " fine.", "cut": content[:3], "other": "42"}
    return {**message, "content": texts.get(how, content)}


async def play(model: Model, draw: random.Random, turns: int) -> None:
    """Continue, branch, edit and ask twice, at random."""
    conversations: list[list[dict[str, Any]]] = [[{"role": "user", "content": "hello"}]]
    tools = draw.choice([None, TOOLS])
    for _ in range(turns):
        messages = draw.choice(conversations[-3:])
        try:
            replies = await asyncio.gather(
                *(model.chat(messages, tools=tools) for _ in range(draw.choice([1, 1, 2])))
            )
        except RowError:  # a template that cannot render it
            conversations.append([{"role": "user", "content": "again"}])
            continue
        for reply in replies:
            follow = [{"role": "user", "content": draw.choice(["\n\nhow", "fine.", "<tool_response>"])}]
            if reply.message.get("tool_calls"):
                calls = reply.message["tool_calls"]
                follow = [{"role": "tool", "tool_call_id": one["id"], "content": "\n42"} for one in calls]
            conversations.append([*messages, changed(dict(reply.message), draw), *follow])


def check(rows: list[Experience], engine: RandomEngine) -> set[tuple[int, int]]:
    """Every trained token stands after exactly what the engine saw; returns the tokens that are trained."""
    trained: set[tuple[int, int]] = set()
    for row in rows:
        columns = zip(row.token_ids, row.action_mask, row.logprobs, strict=True)
        version = {n: v for v, start, end in row.version_spans for n in range(start, end)}
        for n, (token, mask, logprob) in enumerate(columns):
            if not mask:
                assert (logprob, n in version) == (0.0, False)
                continue
            call, place = engine.place[logprob]
            prompt, sampled = engine.calls[call]
            assert (token, version[n]) == (sampled[place], call)
            assert list(row.token_ids[:n]) == prompt + sampled[:place]
            assert (call, place) not in trained
            trained.add((call, place))
        assert row.prompt_length == list(row.action_mask).index(1)
        assert sum(message["role"] == "assistant" for message in row.messages) >= len(row.version_spans)
    return trained


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 10**9), st.sampled_from(FAMILY), st.sampled_from(list(TemplatePolicy)[:2]), st.booleans()
)
@example(0, "qwen3", TemplatePolicy.FORK, False)
def test_trained_tokens_stand_after_what_the_engine_saw(template_of, seed, family, policy, step_wise) -> None:
    draw = random.Random(seed)  # noqa: S311
    template = template_of(family)
    engine = RandomEngine(template.tokenizer, draw)
    model = Model(engine, template, Sampling(64), policy=policy)
    asyncio.run(play(model, draw, turns=draw.randint(1, 7)))
    rows = model.rows(TASK, CONTEXT, step_wise=step_wise)
    trained = check(rows, engine)
    if rows:
        check_rows(rows, TASK, CONTEXT)
    sampled = set(engine.place.values())
    assert trained <= sampled
    if not model.drift[Drift.MASKED]:
        assert trained == sampled
    if step_wise:
        assert len(rows) == len(engine.calls)


# --- the real engine -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TransformersEngine, ChatTemplate]]:
    model = build_tiny_model(tmp_path_factory.mktemp("tiny") / "model", seed=3, hidden_size=64, num_layers=2)
    weights: Path = tmp_path_factory.mktemp("v7")
    publishable(model, weights)
    write_manifest(weights, {"run_id": "run", "version": 7, "step": 0})
    engine = TransformersEngine(model, seed=0, max_model_len=256, options={})
    engine.load_weights(WeightRef("run", 7, 0, str(weights)))
    yield engine, ChatTemplate(load_tokenizer(model))
    engine.close()


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 4), st.sampled_from([(), ("4", "e")]))
def test_scoring_a_row_again_gives_its_logprobs(real, seed: int, turns: int, stop: tuple[str, ...]) -> None:
    engine, template = real
    draw = random.Random(seed)  # noqa: S311
    model = Model(engine, template, Sampling(draw.randint(1, 12)), policy=TemplatePolicy.KEEP_THINKING)

    async def talk(first: str) -> None:
        messages = [{"role": "user", "content": first}]
        for _ in range(turns):
            reply = await model.chat(messages, stop=stop)
            messages += [changed(dict(reply.message), draw), {"role": "user", "content": "1 + 1 ="}]

    async def both() -> None:
        await asyncio.gather(talk("4 + 3 ="), talk("x"))

    asyncio.run(both())
    rows = model.rows(TASK, CONTEXT)
    for row, scored in zip(rows, engine.score([row.token_ids for row in rows]), strict=True):
        for mask, found, again in zip(row.action_mask, row.logprobs, scored, strict=True):
            assert not mask or abs(found - again) <= 1e-4
