"""Steps of a model that looks at images: its logprobs are those of its own forward pass over each row."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from rft_data.core.canonical import bytes_id
from rft_data.core.errors import RecipeError
from rft_data.core.groups import Lease
from rft_data.core.protocols import LeasedBatch
from tests.tiny_vision import build_tiny_vision_model, pixels, png
from trainers.models.weights import load_model
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.images import SHOWN, TENSORS, Images, model_images
from trainers.policy.plan import GrpoPlan, Limits

STORED = {bytes_id(data): data for data in (png(1), png(2), png(3))}
ONE, OTHER, THIRD = STORED
PLACES = 4
"""Tokens of an image."""


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_vision_model(tmp_path_factory.mktemp("seeing") / "model")


def row(seq: int, model: Any, processor: Any, shown: list[str], said: int) -> dict[str, Any]:
    """A row with the logprobs of the model's own forward pass over it alone."""
    rng = np.random.default_rng(seq)
    image = model.config.image_token_id
    prompt = [2, *[one for _ in shown for one in [image] * PLACES], *rng.integers(5, 90, 1 + seq).tolist(), 3]
    ids = [*prompt, *rng.integers(5, 90, said).tolist()]
    seen: Mapping[str, Any] = {}
    if shown:
        seen = processor.image_processor([pixels(STORED[name]) for name in shown], return_tensors="pt")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), **seen).logits[0, :-1].log_softmax(-1)
    scored = logits.gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()
    return {
        "seq": seq,
        "group_id": f"run/g-{seq // 2}",
        "prompt_length": len(prompt),
        "token_ids": ids,
        "action_mask": [0] * len(prompt) + [1] * said,
        "logprobs": [0.0] * len(prompt) + scored[len(prompt) - 1 :],
        "advantage": [1.0 - seq],
        "reward": 1.0,
        "version_min": 0,
        "payloads": shown,
    }


def leased(rows: list[dict[str, Any]]) -> LeasedBatch:
    kinds = {"advantage": pa.list_(pa.float32()), "logprobs": pa.list_(pa.float32())}
    table = pa.table({name: pa.array([one[name] for one in rows], kinds.get(name)) for name in rows[0]})
    lease = Lease("trainer", 0, 0, 0, tuple(range(len(rows))), ("g",), "digest")
    return LeasedBatch(lease, table, {name: STORED[name] for one in rows for name in one["payloads"]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "objective", "tolerance"),
    [
        ({"loss_type": "dapo"}, {}, 1e-5),
        ({}, {"loss": {"use": "ppo_clip"}}, 1e-5),
        ({"loss_type": "dapo", "bf16": True}, {}, 0.05),
    ],
    ids=["trls loss", "our loss", "trls head"],
)
def test_logprobs_of_a_step_are_those_of_each_row_with_its_images(
    seeing: Path, tmp_path: Path, options: dict[str, Any], objective: dict[str, Any], tolerance: float
) -> None:
    model = AutoModelForImageTextToText.from_pretrained(seeing, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(seeing)
    rows = [
        row(0, model, processor, [ONE], 5),
        row(1, model, processor, [OTHER, THIRD], 3),  # in any batch the order of the images counts
        row(2, model, processor, [], 4),
        row(3, model, processor, [ONE], 2),
    ]
    common = {"learning_rate": 1e-3, "gradient_accumulation_steps": 2}
    limits = Limits(threads=1)
    plan = GrpoPlan(
        seeing, tmp_path / "out", 1, 4, {**common, **options}, 0, objective=objective, limits=limits
    )
    with closing(GrpoTrainer(plan)) as trainer:
        metrics = trainer.step(leased(rows))
        trainer.save_weights(_made(tmp_path / "published"))
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(1.0, abs=tolerance)
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=tolerance)
    assert metrics["grad_norm"] > 0
    published = load_model(tmp_path / "published")
    tower = "model.vision_tower.embeddings.patch_embedding.weight"
    assert not torch.equal(published.state_dict()[tower], model.state_dict()[tower]), (
        "the eyes were not trained"
    )
    assert type(AutoProcessor.from_pretrained(tmp_path / "published")) is type(processor)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_256_rows_of_one_image_have_its_tensors_once(seeing: Path) -> None:
    images = Images(seeing)
    names = pa.array([[ONE]] * 256)
    lease = Lease("trainer", 0, 0, 0, tuple(range(256)), ("g",), "digest")
    made = images.tensors(LeasedBatch(lease, pa.table({"payloads": names}), {ONE: STORED[ONE]}), 256)
    assert sorted(made) == [f"{TENSORS}0.pixel_values", SHOWN]
    one = made[f"{TENSORS}0.pixel_values"].nbytes
    assert sum(tensor.nbytes for tensor in made.values()) < 2 * one


def test_a_text_model_has_no_part_for_images(model_path: Path) -> None:
    assert model_images(model_path, {}) is None


@pytest.mark.parametrize("part", ["critic", "lora"])
def test_what_does_not_see_images_is_refused(seeing: Path, part: str) -> None:
    with pytest.raises(RecipeError, match=f"the stage has '{part}', and the model .* looks at images"):
        model_images(seeing, {part: {}})


@pytest.mark.slow
def test_a_resumed_run_goes_on_bit_for_bit(seeing: Path, tmp_path: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(seeing, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(seeing)
    first = leased([row(0, model, processor, [ONE], 5), row(1, model, processor, [OTHER], 3)])
    second = replace(first, lease=replace(first.lease, step=1))
    options = {"learning_rate": 1e-3, "loss_type": "dapo", "beta": 0.1}
    plan = GrpoPlan(seeing, tmp_path / "out", 2, 2, options, 0, limits=Limits(threads=1))
    with closing(GrpoTrainer(plan)) as straight:
        straight.step(first, checkpoint=True)
        wanted = straight.step(second)
        straight.save_weights(_made(tmp_path / "straight"))
    resumed_plan = replace(plan, resume_from=tmp_path / "out" / "checkpoint-1")
    with closing(GrpoTrainer(resumed_plan)) as resumed:
        found = resumed.step(second)
        resumed.save_weights(_made(tmp_path / "resumed"))
    for name in ("loss", "grad_norm", "kl", "sampling/importance_sampling_ratio/max"):
        assert found[name] == wanted[name], name
    ours, theirs = (load_file(tmp_path / one / "model.safetensors") for one in ("resumed", "straight"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
