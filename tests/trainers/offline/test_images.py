"""Offline stages and images: rows that show them are left out and counted, and the next stage still sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.images import image_part
from rft_data.core.model_folder import processor_hash
from rft_data.run import checks
from tests.rft_data.run.test_modes import TRAIN, recipe
from tests.rft_data.run.test_offline_run import rollouts
from tests.tiny_vision import build_tiny_vision_model, png
from trainers.offline.offline_stage import StageInput, StageReport, run_stage


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_vision_model(tmp_path_factory.mktemp("seeing") / "model")


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Buffer]:
    """Three groups of two answers; one answer of the last is about an image, with its sampled ids."""
    with Buffer(tmp_path / "buffer") as buffer:
        shown = buffer.add_payload(png(1), "image/png")
        *rows, last = rollouts(3)
        content = [image_part(shown), {"type": "text", "text": "Which?"}]
        ids = {"token_ids": [2, 5, 3, 7, 1], "action_mask": [0, 0, 0, 1, 1], "prompt_length": 3}
        messages = ({"role": "user", "content": content}, last.messages[1])
        buffer.append([*rows, replace(last, messages=messages, payloads=(shown,), **ids)])
        yield buffer


def trained(buffer: Buffer, algorithm: str, model: Path, output: Path, **data: object) -> StageReport:
    output.mkdir()
    options = {"max_steps": 1, "per_device_train_batch_size": 2, "use_cpu": True}
    return run_stage(buffer, algorithm, StageInput(model, output, options, data, 0, 0.0))


@pytest.mark.slow
def test_a_model_that_looks_at_images_is_published_with_its_processor(
    stored: Buffer, seeing: Path, tmp_path: Path
) -> None:
    report = trained(stored, "sft", seeing, tmp_path / "sft")
    assert (report.examples, report.left_out) == (5, {"it shows images or has other payloads": 1})
    assert processor_hash(tmp_path / "sft") == processor_hash(seeing)
    report = trained(stored, "dpo", seeing, tmp_path / "dpo", pairs="mined")
    assert report.examples == 2
    [reason] = report.left_out
    assert "different prompts" in reason
    assert processor_hash(tmp_path / "dpo") == processor_hash(seeing)


@pytest.mark.slow
def test_a_reward_model_is_not_made_of_one_that_looks_at_images(
    stored: Buffer, seeing: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match="looks at images, and a reward model is made from a model of text"):
        trained(stored, "reward_model", seeing, tmp_path / "scorer", pairs="mined")


@pytest.mark.slow
def test_rollouts_that_show_images_are_not_trained_on_blindly(stored: Buffer, tmp_path: Path) -> None:
    train = recipe(tmp_path, TRAIN, "learning", "train")
    checks._check_shown_images(train, stored)
    *_, last = rollouts(4)
    [shown] = stored.read("payloads", ["payload_id"])["payload_id"].to_pylist()
    ids = {"token_ids": [2, 3, 7], "action_mask": [0, 0, 1], "logprobs": [0.0, 0.0, -1.0], "prompt_length": 2}
    versions = {"version_min": 0, "version_max": 0, "version_spans": ((0, 2, 3),)}
    seen = replace(last, run_id="looking", source="rollout", payloads=(shown,), **ids, **versions)
    stored.append([seen])
    assert stored.counts()["experiences"] == 7
    with pytest.raises(RecipeError, match="run 'looking' has rollouts that show images, and the model in"):
        checks._check_shown_images(train, stored)
