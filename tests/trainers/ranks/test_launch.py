"""Ranks that torchrun started train as one process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from safetensors.torch import load_file

from rft_data.core.errors import RecipeError
from rft_data.weights.adapter import ADAPTER_FILE
from rft_data.weights.probe import Probe
from tests.template import FORK
from tests.trainers.ranks import torchrun_scenario
from tests.trainers.ranks.rank_scenarios import alone, relative, scenario, write_table
from tests.trainers.ranks.torchrun_scenario import adapted
from trainers.models.adapters import write_adapter
from trainers.models.weights import load_tokenizer
from trainers.ranks.follower import served_torchrun
from trainers.role import other_ranks

ROOT = Path(__file__).parents[3]
TORCHRUN = f"{FORK}from torch.distributed.run import main; main()"
Rows = Callable[..., pa.Table]


@pytest.fixture(scope="module")
def wanted(
    tmp_path_factory: pytest.TempPathFactory, model_path: Path, rows_table: Rows
) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("launch")
    write_table(folder, "full", rows_table(0, 16, per_token=True))
    return folder, scenario(folder, model_path, "trl-token-mean", 2)


def _check(folder: Path, wanted: dict[str, Any]) -> None:
    one, _ = alone(folder, wanted, f"alone-{wanted['name']}")
    before = load_file(Path(wanted["arguments"]["model_path"]) / "model.safetensors")
    assert relative(load_file(folder / wanted["name"] / "model.safetensors"), one, before) <= 1e-5


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.heavy
def test_torchruns_ranks_train_as_one_process_does(wanted: tuple[Path, dict[str, Any]]) -> None:
    folder, what = wanted
    what = {**what, "name": "torchrun"}
    (folder / "scenario.json").write_text(json.dumps(what))
    command = [sys.executable, "-c", TORCHRUN, "--standalone", "--nproc_per_node", "2"]
    command += ["-m", torchrun_scenario.__name__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=_environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr[-6000:]
    _check(folder, what)
    # nothing else in rank 0's run takes itself for a rank
    assert json.loads((folder / "told.json").read_text()) == {"seen": []}
    # an adapter split over the ranks was published whole
    model_path = Path(what["arguments"]["model_path"])
    whole_model = folder / "adapter"
    whole_model.mkdir()
    write_adapter(adapted(model_path), model_path, load_tokenizer(model_path), whole_model, None)
    sharded = folder / "sharded-adapter"
    assert (sharded / ADAPTER_FILE).read_bytes() == (whole_model / ADAPTER_FILE).read_bytes()
    assert Probe.load(sharded).check(Probe.load(whole_model).logprobs, 1e-5, "sharded") <= 1e-5


@pytest.mark.heavy
def test_run_without_torchrun_has_no_ranks_to_serve() -> None:
    assert not served_torchrun(1, 1.0)
    assert other_ranks(1, 1.0) is None


@pytest.mark.heavy
def test_torchrun_with_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RecipeError, match=r"torchrun started 4 processes, placement.trainer.processes is 2"):
        served_torchrun(2, 1.0)
