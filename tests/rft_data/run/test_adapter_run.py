"""Whole runs that publish adapters: each version is one, the final model is whole, a kill costs nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rft_data.core.errors import IntegrityError
from rft_data.core.failpoints import armed
from rft_data.recipe import load_recipe
from rft_data.recipe.load import load_run
from rft_data.run.start import run_recipe
from rft_data.weights.adapter import ADAPTER_FILE
from rft_data.weights.probe import Probe
from tests.rft_data.run.test_modes import EVAL, EXPLORE, TASKS, TRAIN, recipe
from tests.rft_data.run.test_online import check_books, write_recipe

pytestmark = pytest.mark.heavy

LORA = "stages.1.lora={r: 4, lora_alpha: 16, target_modules: [q_proj, v_proj]}"
STAGE = """\
  - algorithm: grpo
    groups_per_step: 2
    steps: STEPS
    checkpoint_every: 1
    lora: {r: 2, target_modules: [q_proj]}
    trl: {learning_rate: 1.0e-2, lr_scheduler_type: constant}
"""


def last_version(run: Path) -> Path:
    """What engines served, and proved, at the end."""
    return sorted((run / "weights").glob("v*"))[-1]


def same_as_served(run: Path) -> bool:
    """Whether transformers alone loads the final model and gives the logprobs that engines proved."""
    model = AutoModelForCausalLM.from_pretrained(run / "final", dtype=torch.float32).eval()
    probe = Probe.load(last_version(run))
    measured = []
    for ids in probe.token_ids:
        with torch.no_grad():
            table = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        found = table.gather(-1, torch.tensor(ids)[1:, None])[:, 0]
        measured.append(torch.cat([torch.zeros(1), found]).numpy())
    return probe.check(measured, 1e-5, "the final model") <= 1e-5


def test_online_run_publishes_adapters_and_ends_with_a_whole_model(tmp_path: Path) -> None:
    run, transport = tmp_path / "run", "explorer.engine.transport={use: shm}"
    loaded = load_recipe(write_recipe(tmp_path), [LORA, transport, "evaluation.limit=8"])
    final = run / "final"
    for name, at in (("publish.renamed", 5), ("final.written", 1)):
        with armed(name, at), pytest.raises(OSError, match=name):
            run_recipe(loaded)
    assert not final.exists()
    summary = run_recipe(loaded)
    assert summary["model"] == str(final)
    assert not final.with_name(".draft-final").exists()
    check_books(tmp_path, steps=4)
    manifest = json.loads((last_version(run) / "manifest.json").read_text())
    assert manifest["adapter"]["base"] == "../../stages/0-sft"
    assert {path.name for path in last_version(run).iterdir()} == {
        *("adapter_config.json", ADAPTER_FILE, "manifest.json", "probe")
    }
    assert same_as_served(run)
    assert len(AutoTokenizer.from_pretrained(final)) > 100


def test_training_killed_before_its_final_model_is_whole_is_resumed_taken_on_and_its_adapters_evaluated(
    tmp_path: Path,
) -> None:
    tasks = TASKS.replace("use: answer_format", "use: 'tests.rft_data.run.test_extending:uneven'")
    run_recipe(recipe(tmp_path, EXPLORE, "looking", "explore", groups=6, tasks=tasks))
    shutil.copytree(tmp_path / "buffer", tmp_path / "straight" / "buffer")
    stage = STAGE.replace("STEPS", "2")
    learning, run = recipe(tmp_path, TRAIN, "learning", "train", stage=stage), tmp_path / "learning"
    with armed("step.begin", 2), pytest.raises(OSError, match=r"step\.begin"):
        run_recipe(learning)
    base = run / "model" / "model.safetensors"
    data = base.read_bytes()
    base.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="is not the file that the published adapter was trained on"):
        run_recipe(learning)
    base.write_bytes(data)
    command = [sys.executable, "-m", "rft_data.cli.app"]
    environment = {**os.environ, "RFT_FAILPOINT": "final.written:1:kill"}
    killed = subprocess.run(
        [*command, "run", str(tmp_path / "learning.yaml")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (run / "final").exists()
    assert run_recipe(load_run(run))["model"] == str(run / "final")
    assert same_as_served(run)
    two_steps = (run / "final" / "model.safetensors").read_bytes()
    run_recipe(load_run(run, ["steps=3"]))
    assert same_as_served(run)
    straight = recipe(tmp_path / "straight", TRAIN, "learning", "train", stage=STAGE.replace("STEPS", "3"))
    of_three = Path(run_recipe(straight)["model"]) / "model.safetensors"
    assert (run / "final" / "model.safetensors").read_bytes() == of_three.read_bytes() != two_steps
    versions = f"{run.rename(tmp_path / 'moved')}/weights/v*"
    measured = run_recipe(recipe(tmp_path, EVAL, "measuring", "eval", models=versions))
    assert len(measured["heldout_accuracy"]) == 2
