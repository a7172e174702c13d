"""Whole runs with every part real: tiny model, LanceDB, Data-Juicer operators, TRL, vLLM or transformers."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.gpu_check.__main__ import run_figures
from docs.pages.metrics import ONLINE
from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.digests import row_digests
from rft_data.core.errors import RecipeError, ResumeError
from rft_data.core.rows import Task, TaskKey
from rft_data.recipe import load_recipe
from rft_data.recipe.load import load_run
from rft_data.run.folder import Run
from rft_data.run.start import run_recipe
from rft_data.tasks.selectors.difficulty import Difficulty
from tests.rft_data.run.watch.wandb_file import records_of_wandb
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
WITH_TESTS = {**os.environ, "PYTHONPATH": str(ROOT)}
"""For commands whose recipe names a part of a test."""

RECIPE = """\
recipe: 1
name: small
mode: online
run_dir: {root}/run
buffer: {{uri: {root}/run/buffer}}
model:
  build: {{use: tiny_qwen2, hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}
tasks:
  - name: sums
    source:
      use: reasoning_gym
      dataset: chain_sum
      size: 400
      args: {{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}}
    difficulty: 2
    heldout: 0.25
experts:
  - {{use: "recipes.arithmetic:short_answer", tasksets: [sums], limit: 200}}
selector: {{use: difficulty}}
explorer:
  engine: {{use: {engine}, max_model_len: 64}}
  group_size: 4
  max_tokens: 8
  reward: [{{use: exact_answer}}]
experience_ops:
  - reward_range_filter: {{min_reward: 0.0, max_reward: 1.0}}
  - reward_variance_filter: {{}}
  - grpo_advantage_mapper: {{}}
stages:
  - algorithm: sft
    trl: {{num_train_epochs: 6, per_device_train_batch_size: 16, learning_rate: 3.0e-3}}
  - algorithm: grpo
    groups_per_step: 4
    steps: {steps}
    checkpoint_every: 2
    max_explored: 16
    trl: {{learning_rate: 1.0e-4}}
evaluation: {{limit: 16}}
"""


def write_recipe(root: Path, engine: str = "transformers", steps: int = 4) -> Path:
    path = root / "small.yaml"
    path.write_text(RECIPE.format(root=root, engine=engine, steps=steps))
    return path


def grants(buffer: Buffer) -> list[dict]:
    return [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"]


def check_books(root: Path, steps: int) -> None:
    """What must hold of any finished run, read from its tables alone."""
    with Buffer(root / "run" / "buffer") as buffer:
        rows = {row["seq"]: row for row in buffer.read("experiences").to_pylist()}
        verdicts = {row["seq"]: row for row in buffer.read("annotations").to_pylist()}
        groups = {row["group_id"]: row for row in buffer.read("groups").to_pylist()}
        leases = sorted(grants(buffer), key=lambda lease: lease["step"])
        versions = buffer.read("versions").to_pylist()
        consumed = buffer.read("consumed").column("step").to_pylist()
        by_trainer = buffer.read("trained_tokens").to_pylist()
        table = buffer.read("experiences")
        assert table.column("digest").to_pylist() == row_digests(table)
    step_of = {v["version"]: v["step"] for v in versions}
    assert [v["version"] for v in versions] == list(range(len(versions)))
    assert [lease["step"] for lease in leases] == list(range(steps))
    assert sorted(consumed) == list(range(steps))
    trained = [group_id for lease in leases for group_id in lease["group_ids"]]
    assert len(trained) == len(set(trained)), "a group was trained twice"
    for lease in leases:
        assert lease["seqs"] == [seq for g in lease["group_ids"] for seq in groups[g]["seqs"]]
        for seq in lease["seqs"]:
            row, verdict = rows[seq], verdicts[seq]
            assert row["source"] == "rollout"
            assert verdict["verdict"] == "kept"
            assert step_of[row["version_min"]] == lease["step"], "not on-policy"
            assert row["version_spans"] == [
                {"version": row["version_min"], "start": row["prompt_length"], "end": len(row["token_ids"])}
            ]
    assert {(one["consumer"], one["step"]) for one in by_trainer} == {
        ("trainer", step) for step in range(steps)
    }
    for one in by_trainer:
        assert one["seq"] in leases[one["step"]]["seqs"]
        row = rows[one["seq"]]
        assert one["logprobs"] == pytest.approx(row["logprobs"][row["prompt_length"] :], abs=1e-3), (
            "on-policy"
        )
        assert len(one["entropies"]) == len(one["logprobs"])
    for group in groups.values():
        members = [row for row in rows.values() if row["group_id"] == group["group_id"]]
        assert [row["member"] for row in members] == [0, 1, 2, 3]
        rewards = np.array([row["reward"] for row in members])
        if rewards.std() == 0:
            assert (group["seqs"], group["dropped_by"]) == ([], "reward_variance_filter")
        else:
            advantage = [verdicts[row["seq"]]["advantage"][0] for row in members]
            wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
            assert advantage == pytest.approx(wanted, abs=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("engine", "placement"),
    [("vllm", "inline"), pytest.param("transformers", "local", marks=pytest.mark.heavy)],
)
def test_online_run_keeps_every_book(
    wandb_offline: Path,
    tmp_path: Path,
    engine: str,
    placement: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # where it has a process of its own, the trainer is killed in step 3 and goes on from checkpoint 2
    monkeypatch.setenv("RFT_FAILPOINT", "trainer.step:3:kill")
    changes = [f"placement.use={placement}", "monitor.trackers=[tensorboard, wandb]"]
    if placement == "local":
        changes += ["explorer.engine.transport.use=gloo", "placement.explorers.count=2"]
    summary = run_recipe(load_recipe(write_recipe(tmp_path, engine), changes))
    assert "switched off" not in caplog.text
    assert ("goes on from the checkpoint of step 2" in caplog.text) == (placement == "local")
    shown = [one for file in wandb_offline.glob("offline-run-*/*.wandb") for one in records_of_wandb(file)]
    assert len({one.run.run_id for one in shown if one.HasField("run")}) == 1, "both stages are one run"
    names = {"/".join(i.nested_key) or i.key for one in shown for i in one.history.item}
    assert {"train/0-sft/loss", "train/reward", "train/loss"} <= names
    assert set(summary["heldout_accuracy"]) == {"start", "sft", "final"}
    assert summary["heldout_accuracy"]["start"] < 0.2
    assert summary["consumed_steps"] == 4
    assert summary["weights"]["use"] == ("gloo" if placement == "local" else "directory")
    groups = summary["groups"]
    assert groups["trained"] == 16
    assert summary["groups_by_taskset"] == {"sums": groups["trained"] + groups["dropped"]}
    assert groups["admitted"] == sum(v for k, v in groups.items() if k != "admitted")
    assert all(Path(picture).stat().st_size > 1000 for picture in summary["pictures"])
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    figures = run_figures(tmp_path / "run")  # of a step of `make gpu-check`
    assert 0 <= figures["parity"] < 1e-3
    assert figures["publication_bytes"] > 1000
    assert figures["gained"] == summary["heldout_accuracy"]["final"] - summary["heldout_accuracy"]["start"]
    check_books(tmp_path, steps=4)
    with Buffer(tmp_path / "run" / "buffer") as buffer:
        rows = buffer.read("experiences", ["source"]).column("source").to_pylist()
        metrics = buffer.read("metrics").to_pylist()
    assert {s: rows.count(s) for s in ("expert", "eval")}["eval"] == 3 * 16
    found = {m["key"] for m in metrics if m["role"] == "trainer"}
    assert {name.trl for name in ONLINE if name.always} - {"rewards/NAME/mean", "rewards/NAME/std"} <= found
    assert {"rewards/exact_answer/mean", "rewards/exact_answer/std"} <= found
    for name in ("publication_bytes", "publication_s", "publication_gb_per_s"):
        assert min(m["value"] for m in metrics if m["key"] == name) > 0
    parity = [m["value"] for m in metrics if m["key"] == "parity"]
    assert len(parity) == 4
    assert 0 <= max(parity) < 1e-3
    visited = [m["value"] for m in metrics if m["key"] == "visited"]
    assert 0 < visited[0] <= visited[-1] <= 1


class Gated(Difficulty):
    """Once there is a file, chooses no task before there is another: so a run cannot end too early."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, gates: Sequence[tuple[str, str]]) -> None:
        super().__init__(tasks, seed=seed)
        self._gates = gates

    def select(self, n: int) -> list[TaskKey]:
        for closed, opened in self._gates:
            if Path(closed).exists():
                wait_for(Path(opened).exists)
        return super().select(n)


def checkpoint(root: Path, number: int) -> Path:
    """What is written last of a checkpoint."""
    return root / f"run/checkpoints/checkpoint-{number}/manifest.json"


def gate(root: Path, number: int) -> Path:
    """The file for which a gated run waits after this checkpoint."""
    return root / f"after-{number}"


def write_gated(root: Path, *numbers: int, **settings: int) -> Path:
    """A recipe whose run waits after these checkpoints."""
    path = write_recipe(root, **settings)
    gates = json.dumps([[str(checkpoint(root, number)), str(gate(root, number))] for number in numbers])
    selector = f'selector: {{use: "{__name__}:Gated", args: {{gates: {gates}}}}}'
    path.write_text(path.read_text().replace("selector: {use: difficulty}", selector))
    return path


def signalled(tmp_path: Path, arguments: list[str], number: int, sent: signal.Signals) -> tuple[int, str]:
    """Send `rft ARGUMENTS` a signal once it has written a checkpoint; its exit code and what it said."""
    log, command = tmp_path / "log", [str(Path(sys.executable).with_name("rft")), *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stderr=output, stdout=output, env=WITH_TESTS)
        wait_for(lambda: checkpoint(tmp_path, number).exists() or process.poll() is not None, 240)
        assert process.poll() is None, log.read_text()
        os.kill(process.pid, sent)
        if sent != signal.SIGKILL:
            gate(tmp_path, number).touch()
        return process.wait(240), log.read_text()


@pytest.mark.heavy
def test_run_that_is_killed_and_then_interrupted_finishes_with_its_books_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = write_gated(tmp_path, 2, 4, steps=8)
    code, said = signalled(tmp_path, ["run", str(recipe)], 2, signal.SIGKILL)
    assert code == -signal.SIGKILL, said
    assert "ended without a word" in CliRunner().invoke(app, ["status", str(tmp_path / "run")]).output
    gate(tmp_path, 2).touch()
    code, said = signalled(tmp_path, ["resume", str(tmp_path / "run")], 4, signal.SIGINT)
    assert code == 130, said
    assert "continuing from the checkpoint of step" in said
    stopped = re.search(r"stopped at step (\d) of 8, as asked. Continue with: rft resume", said)
    assert stopped is not None, said
    assert (tmp_path / "run" / "checkpoints" / f"checkpoint-{stopped[1]}" / "manifest.json").is_file()
    assert not (tmp_path / "run" / "summary.json").exists()
    caplog.set_level(logging.INFO)
    resumed = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert resumed.exit_code == 0, resumed.output
    assert "continuing from the checkpoint of step" in caplog.text
    assert "SFT on" not in caplog.text, "a finished stage was done again"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["consumed_steps"] == 8
    check_books(tmp_path, steps=8)
    assert re.search("state +finished", CliRunner().invoke(app, ["status", str(tmp_path / "run")]).output)
    assert CliRunner().invoke(app, ["buffer", "books", str(tmp_path / "run" / "buffer")]).exit_code == 0
    again = CliRunner().invoke(app, ["run", str(recipe)])
    assert again.exit_code == 0, again.output
    assert "this run is complete" in caplog.text
    assert again.stdout.splitlines()[0] == resumed.stdout.splitlines()[0]


@pytest.mark.slow
def test_run_of_another_recipe_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    first = Run(load_recipe(write_recipe(tmp_path)))
    first.begin()
    first.close()
    with pytest.raises(ResumeError, match=r"seed: 0 -> 1\n  stages\.1\.steps: 4 -> 5"):
        Run(load_recipe(write_recipe(tmp_path), ["seed=1", "stages.1.steps=5"]))
    Run(load_recipe(write_recipe(tmp_path))).close()


@pytest.mark.slow
def test_resume_from_a_moved_folder_is_refused(tmp_path: Path) -> None:
    first = Run(load_recipe(write_recipe(tmp_path)))
    first.begin()
    first.close()
    assert load_run(tmp_path / "run").name == "small"
    (tmp_path / "run").rename(tmp_path / "run.old")
    with pytest.raises(ResumeError, match="resume it under that name"):
        load_run(tmp_path / "run.old")
    (tmp_path / "run.old" / "recipe.json").write_text('{"name": ')
    with pytest.raises(ResumeError, match="cannot be read"):
        load_run(tmp_path / "run.old")


@pytest.mark.slow
def test_secrets_from_the_environment_are_stored_as_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_TEST_LIMIT", "16")
    monkeypatch.setenv("RFT_TEST_NAME", "s3cret")
    path = write_recipe(tmp_path)
    text = path.read_text().replace("limit: 16", "limit: '${env:RFT_TEST_LIMIT}'")
    path.write_text(
        text.replace("  - name: sums", "  - name: 'sums-${env:RFT_TEST_NAME}'").replace(
            "[sums]", "[sums-s3cret]"
        )
    )
    recipe = load_recipe(path)
    assert (recipe.evaluation.limit, recipe.tasks[0].name) == (16, "sums-s3cret")
    run = Run(recipe)
    run.begin()
    run.close()
    saved = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert saved["evaluation"]["limit"] == "${env:RFT_TEST_LIMIT}"
    assert saved["tasks"][0]["name"] == "sums-${env:RFT_TEST_NAME}"
    assert load_run(tmp_path / "run").evaluation.limit == 16


@pytest.mark.slow
def test_a_recipe_that_fails_its_checks_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="learning_rat"):
        run_recipe(load_recipe(write_recipe(tmp_path), ["stages.1.trl.learning_rat=1"]))
    with pytest.raises(RecipeError, match="exact_answer"):
        run_recipe(load_recipe(write_recipe(tmp_path), ["explorer.reward.0.use=exact_answr"]))
    with pytest.raises(RecipeError, match="no task of split 'heldout'"):
        run_recipe(load_recipe(write_recipe(tmp_path), ["tasks.0.heldout=0.0"]))
    with Buffer(tmp_path / "run" / "buffer") as buffer:
        assert buffer.counts()["runs"] == 0
