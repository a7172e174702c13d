"""Images the whole way: explored by vLLM in a process of its own, stored once, read back, trained on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core.canonical import bytes_id
from rft_data.core.errors import RowError
from rft_data.core.groups import Lease
from rft_data.core.protocols import LeasedBatch
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from tests.tiny_vision import build_tiny_vision_model, png
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.images import Images
from trainers.policy.plan import GrpoPlan, Limits

IMAGE = png(7, side=600)
"""About a megabyte."""
GROUPS, SIZE = 8, 8

RECIPE = """
recipe: 1
name: seen
mode: explore
seed: 0
groups: {groups}
run_dir: {folder}/run
buffer: {{uri: {folder}/buffer}}
model: {{path: {folder}/model}}
tasks:
  - {{name: seen, source: {{use: jsonl, path: {folder}/tasks.jsonl}}, images: images}}
  - {{name: seen-twice, source: {{use: jsonl, path: {folder}/tasks.jsonl}}, images: images, workflow: twice}}
selector: {{use: random}}
explorer:
  engine: {{use: vllm, max_model_len: 64, options: {{model_impl: transformers}}}}
  group_size: {size}
  max_tokens: 4
  reward: [{{use: exact_answer}}]
  workflows: {{twice: {{use: "{folder}/twice.py:play"}}}}
experience_ops:
  - grpo_advantage_mapper: {{}}
placement: {{use: local}}
"""

PLAY = """
async def play(task, model):
    reply = await model.chat(task.messages)
    await model.chat([*task.messages, reply.message, *task.messages])
"""


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Buffer]]:
    """64 rollouts of one image, on a vision-language model of random weights."""
    folder = tmp_path_factory.mktemp("seen")
    build_tiny_vision_model(folder / "model")
    (folder / "image.png").write_bytes(IMAGE)
    (folder / "twice.py").write_text(PLAY)
    task = {"question": "<image> 1 + 1 =", "answer": "2", "images": "image.png"}
    (folder / "tasks.jsonl").write_text(json.dumps(task))
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=folder, groups=GROUPS, size=SIZE))
    run_recipe(load_recipe(recipe))
    with Buffer(folder / "buffer") as buffer:
        yield folder, buffer


def batch(buffer: Buffer) -> LeasedBatch:
    """All rows as one lease."""
    rows = buffer.read("experiences")
    seqs = rows["seq"].to_pylist()
    advantages = np.resize([1.0, -1.0], len(seqs)).astype(np.float32)
    rows = rows.drop_columns(["payloads"])
    table = rows.append_column("advantage", pa.array([[one] for one in advantages], pa.list_(pa.float32())))
    return LeasedBatch(Lease("trainer", 0, 0, 0, tuple(seqs), ("g",), "digest"), table)


@pytest.mark.heavy
def test_64_rollouts_of_one_image_store_it_once(explored: tuple[Path, Buffer]) -> None:
    folder, buffer = explored
    rows = buffer.read("experiences", ["messages", "payloads", "metadata", "token_ids", "prompt_length"])
    assert rows.num_rows > 0.9 * GROUPS * SIZE  # a rollout that sampled the placeholder itself fails
    assert buffer.counts()["payloads"] == 1
    name = bytes_id(IMAGE)
    assert buffer.payload(name) == ("image/png", IMAGE)
    assert set(map(tuple, rows["payloads"].to_pylist())) == {(name,), (name, name)}, "one turn, and two"
    assert sum(file.stat().st_size for file in (folder / "buffer").rglob("*") if file.is_file()) < 2 * len(
        IMAGE
    )


@pytest.mark.heavy
def test_the_trainers_logprobs_of_images_are_those_of_vllm(
    explored: tuple[Path, Buffer], tmp_path: Path
) -> None:
    folder, buffer = explored
    leased = batch(buffer)
    options = {"learning_rate": 1e-3, "loss_type": "dapo", "gradient_accumulation_steps": 4}
    plan = GrpoPlan(
        folder / "model", tmp_path / "out", 1, GROUPS * SIZE, options, 0, limits=Limits(threads=1)
    )
    with closing(GrpoTrainer(plan)) as trainer:
        assert trainer.images is not None
        metrics = trainer.step(trainer.images.loaded(leased, buffer))
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_rows_that_another_processor_prepared_are_refused(
    explored: tuple[Path, Buffer], tmp_path: Path
) -> None:
    folder, buffer = explored
    other = shutil.copytree(folder / "model", tmp_path / "model")
    config = json.loads((other / "processor_config.json").read_text())
    config["image_processor"]["do_normalize"] = False
    (other / "processor_config.json").write_text(json.dumps(config))
    with pytest.raises(RowError, match=r"experience row \d+ shows images that processor '\w+' prepared"):
        Images(other).loaded(batch(buffer), buffer)
