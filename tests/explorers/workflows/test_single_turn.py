"""The real workflow on the small engine: token columns, names, rewards."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from explorers.engines.transformers_engine import TransformersEngine
from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.rules import AnswerFormat
from explorers.rewards.scoring import Rewards
from explorers.workflows.groups import together
from explorers.workflows.rollouts import Rollouts
from explorers.workflows.single_turn import SingleTurn, tokenizer_hash
from rft_data.core.engine import Sampling
from rft_data.core.errors import RecipeError
from rft_data.core.files import write_manifest
from rft_data.core.rows import Experience, Task, WeightRef, experience_id_of
from rft_data.core.workflow import RolloutContext
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import load_tokenizer, publishable

TASKS = [Task("sums", ({"role": "user", "content": f"{n} + {n} ="},), answer=str(2 * n)) for n in range(4)]
LONG = Task("sums", ({"role": "user", "content": "1" * 200},), answer="1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return build_tiny_model(folder, seed=3, hidden_size=64, num_layers=2)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersEngine]:
    weights = tmp_path_factory.mktemp("v7")
    publishable(model, weights)
    write_manifest(weights, {"run_id": "run", "version": 7, "step": 0})
    engine = TransformersEngine(model, seed=0, max_model_len=128, options={})
    engine.load_weights(WeightRef("run", 7, 0, str(weights)))
    yield engine
    engine.close()


def play(engine: TransformersEngine, tokenizer: Any, *tasks: Task) -> list[list[Experience] | Exception]:
    """Three rollouts of each task, all at once."""

    def two(task: Task, completion: str) -> float:
        return 2

    rewards = Rewards({"two": 0.5, "format": 0.25}, {"two": two, "format": AnswerFormat()})
    rollouts = Rollouts(engine, SingleTurn(tokenizer, rewards), Limits(), Meter())
    contexts = [
        (task, RolloutContext("run", f"g{n}", member, 2, "e0", "rollout", Sampling(8, 0.7)))
        for n, task in enumerate(tasks)
        for member in range(3)
    ]
    return asyncio.run(together([rollouts.play(task, ctx) for task, ctx in contexts]))


@pytest.mark.slow
def test_token_columns_share_the_coordinates_of_prompt_and_completion(
    engine: TransformersEngine, tokenizer: Any
) -> None:
    for (row,) in play(engine, tokenizer, TASKS[0]):
        messages = [dict(message) for message in TASKS[0].messages]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        length = len(row.token_ids)
        assert row.prompt_length == len(prompt)
        assert row.token_ids[: len(prompt)] == prompt
        assert row.action_mask == [0] * len(prompt) + [1] * (length - len(prompt))
        assert len(row.logprobs) == length
        assert all(row.logprobs[i] == 0.0 for i in range(len(prompt)))
        assert all(row.logprobs[i] < 0.0 for i in range(len(prompt), length))
        assert list(row.version_spans) == [(7, len(prompt), length)]
        assert (row.version_min, row.version_max) == (7, 7)
        completion = tokenizer.decode(row.token_ids[len(prompt) :], skip_special_tokens=True)
        assert row.completion_text == completion
        assert list(row.messages) == [*TASKS[0].messages, {"role": "assistant", "content": completion}]
        assert row.sampling == {"max_tokens": 8, "temperature": 0.7}


def test_rows_carry_the_names_of_their_context_and_the_reward(
    engine: TransformersEngine, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, rendered = tokenizer.apply_chat_template, []

    def counted(messages: Any, **more: Any) -> Any:
        rendered.append(messages)
        return render(messages, **more)

    monkeypatch.setattr(tokenizer, "apply_chat_template", counted)
    rows = [row for (row,) in play(engine, tokenizer, *TASKS)]
    assert len(rendered) == len(TASKS)  # once for the members of a group
    prompts = [
        render([dict(m) for m in row.messages[:1]], return_dict=False, add_generation_prompt=True)
        for row in rows
    ]
    assert [row.token_ids[: row.prompt_length] for row in rows] == prompts
    assert len({*map(tuple, prompts)}) == len(TASKS)
    assert len({tuple(row.token_ids) for row in rows}) > len(TASKS)
    assert [row.member for row in rows] == [0, 1, 2] * 4
    assert rows[4].experience_id == experience_id_of("run", TASKS[1].key, 2, "g1", 1)
    for row in rows:
        assert row.reward_parts == {"two": 2.0, "format": 0.0}
        assert (row.reward, row.unscored_reason) == (1.0, None)
        assert (row.attempt, row.explorer_id, row.source, row.taskset) == (2, "e0", "rollout", "sums")


def test_a_prompt_too_long_fails_its_rollouts_and_no_other(
    engine: TransformersEngine, tokenizer: Any
) -> None:
    outcomes = play(engine, tokenizer, LONG, TASKS[0])
    assert all("max_model_len 128" in str(outcome) for outcome in outcomes[:3])
    assert all(isinstance(outcome, list) for outcome in outcomes[3:])


def test_greedy_rollouts_repeat(engine: TransformersEngine, tokenizer: Any) -> None:
    workflow = SingleTurn(tokenizer, Rewards({"format": 1.0}, {"format": AnswerFormat()}))
    ctx = RolloutContext("run", "g", 0, 0, "e0", "eval", Sampling(8, 0.0))
    (first,), (second,) = (asyncio.run(workflow.run(TASKS[0], engine, ctx)) for _ in range(2))
    assert dataclasses.replace(first, created_at=second.created_at) == second


@pytest.mark.slow
def test_system_prompt_and_arguments_of_the_template_reach_the_prompt(
    engine: TransformersEngine, tokenizer: Any
) -> None:
    template = tokenizer.chat_template
    rewards = Rewards({"format": 1.0}, {"format": AnswerFormat()})
    ctx = RolloutContext("run", "g", 0, 0, "e0", "eval", Sampling(4, 0.0))
    try:
        tokenizer.chat_template = template + "{% if polite %}{{ 'please' }}{% endif %}"
        with pytest.raises(RecipeError, match="takes no argument 'polit', so it would be ignored"):
            SingleTurn(tokenizer, rewards, chat_template_kwargs={"polit": True})
        workflow = SingleTurn(tokenizer, rewards, system="Be brief.", chat_template_kwargs={"polite": True})
        (row,) = asyncio.run(workflow.run(TASKS[0], engine, ctx))
    finally:
        tokenizer.chat_template = template
    assert row.messages[:2] == ({"role": "system", "content": "Be brief."}, *TASKS[0].messages)
    assert row.prompt_messages == 2
    prompt = tokenizer.decode(row.token_ids[: row.prompt_length])
    assert prompt == "<|user|>Be brief.<|user|>0 + 0 =<|assistant|>please"


def test_tokenizer_hash_ignores_padding_and_sees_the_template(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    before = tokenizer_hash(tokenizer)
    tokenizer(["1", "1 + 1"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(tokenizer) == before
    tokenizer.chat_template = tokenizer.chat_template + " "
    assert tokenizer_hash(tokenizer) != before
