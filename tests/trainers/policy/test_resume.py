"""A run that was stopped and continued in another process ends with the weights of one that was not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from rft_data.core.errors import TrainingError
from rft_data.core.files import file_digest
from rft_data.core.protocols import LeasedBatch
from tests.template import FORK
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan, Limits

REPO = Path(__file__).parents[3]
Rows = Callable[..., pa.Table]
Replace = Callable[[pa.Table, str, Sequence[Any]], pa.Table]
Leased = Callable[[pa.Table, int], LeasedBatch]

OPTIONS = {
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
    "weight_decay": 0.01,
    "gradient_accumulation_steps": 2,
    "beta": 0.1,
}
OFF_POLICY = {"old_logprobs": "recompute", "importance": "token_truncated"}

CONTINUE = """
import sys, pyarrow as pa
from pathlib import Path
from rft_data.run.build import prepare_process
prepare_process()
from rft_data.core.files import file_digest
from rft_data.core.protocols import LeasedBatch
from rft_data.core.groups import Lease
from tests.trainers.policy.test_resume import trainer
model, tables, *checkpoints = map(Path, sys.argv[1:])
for checkpoint in checkpoints:
    grpo = trainer(model, checkpoint.parent, resume_from=checkpoint)
    while (table := tables / f"{grpo.steps_done}.arrow").exists():
        with pa.ipc.open_file(table) as file:
            grpo.step(LeasedBatch(Lease("t", 0, 0, 0, (), (), ""), file.read_all()))
    weights = checkpoint.parent / "continued"
    weights.mkdir()
    grpo.save_weights(weights)
    grpo.close()
    print(file_digest(weights / "model.safetensors"))
"""


def trainer(model_path: Path, out: Path, **kwargs: Any) -> GrpoTrainer:
    limits = Limits(threads=1)
    plan = GrpoPlan(model_path, out, 6, 8, OPTIONS, 0, off_policy=OFF_POLICY, limits=limits, **kwargs)
    return GrpoTrainer(plan)


def weights_digest(of: GrpoTrainer, directory: Path) -> str:
    directory.mkdir()
    of.save_weights(directory)
    return file_digest(directory / "model.safetensors")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in folder.iterdir()}


@pytest.fixture
def dropout_model(model_path: Path, tmp_path: Path) -> Path:
    """A model whose steps draw random numbers."""
    folder = tmp_path / "dropout-model"
    shutil.copytree(model_path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}))
    return folder


@pytest.mark.heavy
def test_continued_in_a_new_process_equals_straight_for_every_kind_of_checkpoint(
    dropout_model: Path, tmp_path: Path, rows_table: Rows, leased: Leased, replace_column: Replace
) -> None:
    tables = [rows_table(seed, 8, per_token=True) for seed in range(6)]
    batches = [leased(table, step) for step, table in enumerate(tables)]
    with closing(trainer(dropout_model, tmp_path / "straight")) as straight:
        for batch in batches:
            straight.step(batch)
        want = weights_digest(straight, tmp_path / "want")

    with closing(trainer(dropout_model, tmp_path / "in-step")) as first:
        for step, batch in enumerate(batches[:3]):
            first.step(batch, checkpoint=step == 2)

    with closing(trainer(dropout_model, tmp_path / "between")) as second:
        for batch in batches[:3]:
            second.step(batch)
        weights_digest(second, tmp_path / "published")
        torch.rand(17)  # another part of the process draws from the shared generator
        second.checkpoint()
        before = digests(second.checkpoint_dir(3))
        second.checkpoint()
        assert digests(second.checkpoint_dir(3)) == before
        for batch in batches[3:5]:
            second.step(batch)
        second.checkpoint()
        second.step(batches[5])
        second.checkpoint()
        assert second.checkpoint_dir(6).is_dir()
        assert weights_digest(second, tmp_path / "went-on") == want

    nan = [[float("nan")] * len(row) for row in tables[3].column("advantage").to_pylist()]
    with closing(trainer(dropout_model, tmp_path / "failed")) as third:
        for batch in batches[:3]:
            third.step(batch)
        third.checkpoint()
        before = digests(third.checkpoint_dir(3))
        with pytest.raises(TrainingError, match="optimizer step 4: the loss is nan"):
            third.step(leased(replace_column(tables[3], "advantage", nan), 3), checkpoint=True)
        for save in (third.checkpoint, lambda: third.save_weights(tmp_path)):
            with pytest.raises(TrainingError, match="this trainer was ended by the loss is nan"):
                save()
        assert digests(third.checkpoint_dir(3)) == before

    arrow = tmp_path / "tables"
    arrow.mkdir()
    (tmp_path / "late").mkdir()
    for step in (3, 4, 5):
        with pa.ipc.new_file(arrow / f"{step}.arrow", tables[step].schema) as file:
            file.write_table(tables[step])
    checkpoints = [
        *(tmp_path / run / "checkpoint-3" for run in ("in-step", "between", "failed")),
        tmp_path / "between" / "checkpoint-5",
    ]
    # each writes beside its checkpoint
    checkpoints[-1] = shutil.move(checkpoints[-1], tmp_path / "late" / "checkpoint-5")
    done = subprocess.run(
        [sys.executable, "-c", f"{FORK}{CONTINUE}", dropout_model, arrow, *checkpoints],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [want] * 4


@pytest.mark.slow
def test_checkpoint_before_the_first_step_is_refused_and_after_a_resume_is_there_already(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    with closing(trainer(model_path, tmp_path)) as grpo:
        with pytest.raises(TrainingError, match="no optimizer step has been taken"):
            grpo.checkpoint()
        grpo.step(leased(rows_table(0, 8), 0), checkpoint=True)
        before = digests(grpo.checkpoint_dir(1))
    with closing(trainer(model_path, tmp_path, resume_from=tmp_path / "checkpoint-1")) as again:
        again.checkpoint()
        assert digests(again.checkpoint_dir(1)) == before


@pytest.mark.slow
def test_checkpoint_replaces_what_a_killed_attempt_left(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    leftover = tmp_path / "checkpoint-1" / "model-00001-of-00002.safetensors"
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    with closing(trainer(model_path, tmp_path)) as grpo:
        grpo.step(leased(rows_table(0, 8), 0))
        grpo.checkpoint()
    assert not leftover.exists()
    assert (leftover.parent / "trainer_state.json").is_file()
