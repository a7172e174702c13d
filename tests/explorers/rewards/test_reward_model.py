"""The reward `reward_model`: the trained model's own score, or one clear error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from explorers.rewards.conversation_scorer import ConversationScorer
from explorers.rewards.registry import built_in_kind, make_reward
from explorers.rewards.reward_model import RewardModel
from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import load_tokenizer
from trainers.offline.answers import AnswerPair, rendered_answer
from trainers.offline.preference_accuracy import scorer_accuracy
from trainers.offline.reward_model import load_scorer

TASKS = [Task("sums", ({"role": "user", "content": f"What is {n} + 1?"},)) for n in range(6)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward") / "policy"
    build_tiny_model(folder, seed=3)
    return folder


@pytest.fixture(scope="module")
def scorer(policy: Path) -> Path:
    folder = policy.with_name("scorer")
    torch.manual_seed(0)
    load_scorer(policy).save_pretrained(folder)
    load_tokenizer(policy).save_pretrained(folder)
    return folder


def _pair(scorer: Path, task: Task) -> AnswerPair:
    tokenizer = load_tokenizer(scorer)
    better, worse = (
        rendered_answer(tokenizer, [*task.messages, {"role": "assistant", "content": text}], 1)
        for text in ("It is so.", "Who can tell?")
    )
    return better, worse


def ask(reward: Any, *asked: tuple[Task, str]) -> list[Any]:
    """What a reward says of several completions that are judged at the same time."""

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(reward(task, text) for task, text in asked))

    return asyncio.run(all_at_once())


@pytest.mark.slow
def test_reward_is_the_score_that_the_model_was_trained_by(scorer: Path) -> None:
    reward = make_reward("reward_model", {"model": str(scorer)})
    better = ask(reward, *((task, "It is so.") for task in TASKS))
    worse = ask(reward, *((task, "Who can tell?") for task in TASKS))
    margins = [one - other for one, other in zip(better, worse, strict=True)]
    trained = scorer_accuracy(scorer, [_pair(scorer, task) for task in TASKS])
    assert sum(margins) / len(margins) == pytest.approx(trained["margin"], abs=1e-6)
    assert trained["margin"] != 0.0
    assert sum(margin > 0 for margin in margins) / len(margins) == trained["accuracy"]


@pytest.mark.slow
def test_completions_under_way_together_are_scored_together_as_they_are_alone(scorer: Path) -> None:
    reward = RewardModel(str(scorer), batch=8)
    sizes: list[int] = []
    reward._scorer._model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True
    )
    asked = [
        (task, "It is so. " * (number + length)) for length in (1, 7, 3) for number, task in enumerate(TASKS)
    ]
    together = ask(reward, *asked)
    assert sizes == [8, 8, 2]
    alone = [score for one in asked for score in ask(reward, one)]
    assert together == pytest.approx(alone, abs=1e-6)
    assert len(set(together)) > len(TASKS)
    kind = built_in_kind("reward_model")
    assert kind is not None
    assert (kind.asynchronous, kind.deadline_s) == (True, 60.0)


@pytest.mark.slow
def test_forward_passes_are_bounded_in_tokens(scorer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorers.rewards.conversation_scorer._TOKENS", 100)
    scored = ConversationScorer(str(scorer), "cpu", 32)
    shapes: list[tuple[int, ...]] = []
    scored._model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    scored.scores([[{"role": "user", "content": "a" * n}] for n in (1, 120, 1, 30, 30, 30)])
    assert [rows * width <= 100 or rows == 1 for rows, width in shapes] == [True] * len(shapes)
    assert [rows for rows, _ in shapes] == [3, 2, 1]


@pytest.mark.slow
def test_conversation_that_is_too_long_is_unscored_and_no_other(scorer: Path) -> None:
    longest = json.loads((scorer / "config.json").read_text())["max_position_embeddings"]
    found, other = ask(RewardModel(str(scorer)), (TASKS[0], "1" * longest), (TASKS[1], "1"))
    assert isinstance(found, Unscored)
    assert f"the reward model reads {longest}" in found.reason
    assert isinstance(other, float)


@pytest.mark.slow
def test_a_model_that_fails_is_a_judges_failure_of_that_completion_alone(
    scorer: Path, tmp_path: Path
) -> None:
    load_scorer(scorer).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(scorer)
    tokenizer.add_tokens(["UNHEARD"])  # which the model has no embedding for
    tokenizer.save_pretrained(tmp_path)
    found = ask(RewardModel(str(tmp_path)), *((TASKS[0], text) for text in ("a", "UNHEARD", "b", "c")))
    assert [isinstance(one, float) for one in found] == [True, False, True, True]
    assert found[1].cause is UnscoredCause.JUDGE
    assert "the reward model failed: IndexError" in found[1].reason


@pytest.mark.slow
def test_a_score_that_is_no_number_is_a_judges_failure(scorer: Path, tmp_path: Path) -> None:
    broken = load_scorer(scorer)
    torch.nn.init.constant_(broken.score.weight, float("nan"))
    broken.save_pretrained(tmp_path)
    load_tokenizer(scorer).save_pretrained(tmp_path)
    (found,) = ask(RewardModel(str(tmp_path)), (TASKS[0], "a"))
    assert found == Unscored("the reward model gave nan; wanted a finite number", UnscoredCause.JUDGE)


def test_what_is_no_reward_model_is_refused(policy: Path, scorer: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="a path that every explorer can read"):
        RewardModel(str(tmp_path / "nowhere"))
    with pytest.raises(RecipeError, match=r"is a Qwen2ForCausalLM with \d+ labels, not a reward model"):
        RewardModel(str(policy))
    load_scorer(scorer).save_pretrained(tmp_path)
    load_tokenizer(scorer).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(RecipeError, match="has no chat template"):
        RewardModel(str(tmp_path))


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("cuda:99", r"device 'cuda:99', and this process sees \d+ GPUs, numbered from 0; give one of them"),
        ("graphics", r"device 'graphics', which is none of torch's \(Expected one of cpu, cuda"),
        ("cuda:x", "device 'cuda:x', which is none of torch's"),
    ],
)
def test_a_device_that_is_not_here_ends_the_start(scorer: Path, device: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        make_reward("reward_model", {"model": str(scorer), "device": device})
