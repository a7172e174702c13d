"""A disk with no room under a checkpoint or a weight directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from rft_data.core.errors import DiskFullError, TrainingError
from rft_data.core.protocols import LeasedBatch
from tests.small_disk import small_disk_at
from trainers.models.disk import writing
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan, Limits

Rows = Callable[..., pa.Table]
Leased = Callable[[pa.Table, int], LeasedBatch]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds the tiny model's weights and not its optimizer's state."""
    with small_disk_at(tmp_path / "disk", "1200k") as folder:
        yield folder


@pytest.mark.slow
def test_full_disk_under_a_checkpoint_is_named_and_keeps_the_one_before(
    model_path: Path, small_disk: Path, rows_table: Rows, leased: Leased
) -> None:
    with closing(
        GrpoTrainer(GrpoPlan(model_path, small_disk, 2, 8, {}, 0, limits=Limits(threads=1)))
    ) as grpo:
        grpo.step(leased(rows_table(0, 8), 0))
        with pytest.raises(DiskFullError, match=r"the checkpoint was not written: the disk of '.*' is full"):
            grpo.checkpoint()
        with pytest.raises(TrainingError, match="ended by DiskFullError"):
            grpo.step(leased(rows_table(1, 8), 1))


@pytest.mark.slow
def test_full_disk_under_weights_is_named_and_the_trainer_goes_on(
    model_path: Path, tmp_path: Path, small_disk: Path, rows_table: Rows, leased: Leased
) -> None:
    (small_disk / "other").write_bytes(bytes(1 << 20))
    with closing(
        GrpoTrainer(GrpoPlan(model_path, tmp_path / "run", 2, 8, {}, 0, limits=Limits(threads=1)))
    ) as grpo:
        grpo.step(leased(rows_table(0, 8), 0))
        with pytest.raises(DiskFullError, match="the weight directory was not written"):
            grpo.save_weights(small_disk)
        grpo.step(leased(rows_table(1, 8), 1), checkpoint=True)
        elsewhere = tmp_path / "weights"
        elsewhere.mkdir()
        grpo.save_weights(elsewhere)
        assert (elsewhere / "model.safetensors").is_file()


def test_other_errors_pass_through_as_they_are(tmp_path: Path) -> None:
    for error in (PermissionError("no"), RuntimeError("no"), TrainingError("no"), KeyError("no")):
        with pytest.raises(type(error)) as caught, writing("it", tmp_path):
            raise error
        assert caught.value is error
