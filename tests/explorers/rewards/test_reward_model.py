"""The reward `reward_model`: the trained model's own score, or one clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from explorers.rewards.registry import make_reward
from explorers.rewards.reward_model import RewardModel
from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.protocols import Unscored
from rft_data.core.rows import Task
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


@pytest.mark.slow
def test_reward_is_the_score_that_the_model_was_trained_by(scorer: Path) -> None:
    reward = make_reward("reward_model", {"model": str(scorer)})
    margins = []
    for task in TASKS:
        better, worse = reward(task, "It is so."), reward(task, "Who can tell?")
        assert isinstance(better, float)
        assert isinstance(worse, float)
        margins.append(better - worse)
    trained = scorer_accuracy(scorer, [_pair(scorer, task) for task in TASKS])
    assert sum(margins) / len(margins) == pytest.approx(trained["margin"], abs=1e-6)
    assert trained["margin"] != 0.0
    assert sum(margin > 0 for margin in margins) / len(margins) == trained["accuracy"]


def test_conversation_that_is_too_long_is_unscored(scorer: Path) -> None:
    longest = json.loads((scorer / "config.json").read_text())["max_position_embeddings"]
    found = RewardModel(str(scorer))(TASKS[0], "1" * longest)
    assert isinstance(found, Unscored)
    assert f"the reward model reads {longest}" in found.reason


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
