"""GrpoTrainer step by step: resume, failures, ragged leases, published weights."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rft_data.core.errors import RecipeError, ResumeError, RowError, StalledError, TrainingError
from rft_data.core.protocols import LeasedBatch
from rft_data.weights.probe import Probe
from tests.waiting import wait_for
from trainers.models.weights import publishable
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan, Limits

Rows = Callable[..., pa.Table]
Replace = Callable[[pa.Table, str, Sequence[Any]], pa.Table]
Leased = Callable[[pa.Table, int], LeasedBatch]

OPTIONS = {"learning_rate": 1e-3, "gradient_accumulation_steps": 2}


def trainer(model_path: Path, out: Path, *, steps: int = 4, **kwargs: Any) -> GrpoTrainer:
    options = {**OPTIONS, **kwargs.pop("options", {})}
    return GrpoTrainer(
        GrpoPlan(model_path, out, steps, 8, options, 0, **{"limits": Limits(threads=1), **kwargs})
    )


def weights(of: GrpoTrainer, directory: Path) -> dict[str, torch.Tensor]:
    directory.mkdir()
    of.save_weights(directory)
    return load_file(directory / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"beta": 0.5}], ids=["no-kl", "kl"])
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, options: dict[str, Any]
) -> None:
    batches = [leased(rows_table(seed, 8, per_token=True), seed) for seed in range(4)]
    with closing(trainer(model_path, tmp_path / "straight", options=options)) as straight:
        metrics = [straight.step(batch) for batch in batches]
        want = weights(straight, tmp_path / "want")
    with closing(trainer(model_path, tmp_path / "parts", options=options)) as first:
        first.step(batches[0])
        first.step(batches[1], checkpoint=True)
        at_checkpoint = weights(first, tmp_path / "at")
        checkpoint = first.checkpoint_dir(2)
    with closing(trainer(model_path, tmp_path / "parts", options=options, resume_from=checkpoint)) as second:
        assert second.steps_done == 2
        assert same(weights(second, tmp_path / "resumed"), at_checkpoint)
        resumed = []
        for batch in batches[2:]:
            resumed.append(second.step(batch))
            torch.rand(17)  # another part of the process draws from the shared generator
        assert second.steps_done == 4
        got = weights(second, tmp_path / "got")
    assert same(got, want)
    assert not same(got, at_checkpoint)
    for name in ("loss", "grad_norm", "learning_rate", "entropy"):
        assert [m[name] for m in resumed] == [m[name] for m in metrics[2:]]


@pytest.mark.slow
def test_step_returns_finite_metrics_and_counts(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows_table(0, 8)
    with closing(trainer(model_path, tmp_path)) as grpo:
        assert grpo.steps_done == 0
        metrics = grpo.step(leased(table, 0))
        assert grpo.steps_done == 1
    assert {
        "loss",
        "grad_norm",
        "learning_rate",
        "entropy",
        "clip_ratio/region_mean",
        "reward",
    } <= metrics.keys()
    assert all(isinstance(value, float) and np.isfinite(value) for value in metrics.values())
    assert metrics["reward"] == pytest.approx(np.mean(table.column("reward").to_pylist()))
    assert not any(grpo.checkpoint_dir(1).parent.glob("checkpoint-*"))
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_saved_weights_prove_themselves_between_steps(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    publishable(model_path, tmp_path)
    before = Probe.load(tmp_path)
    with closing(trainer(model_path, tmp_path / "run", options={"temperature": 0.5})) as grpo:
        grpo.step(leased(rows_table(0, 8), 0))
        weights(grpo, tmp_path / "1")
        grpo.step(leased(rows_table(1, 8), 1))
    probe = Probe.load(tmp_path / "1")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "1", dtype=torch.float64)
    measured = []
    for ids in probe.token_ids:
        logits = model(torch.tensor([ids])).logits[0].detach()
        scored = [0.0] + [float(logits[t - 1].log_softmax(-1)[ids[t]]) for t in range(1, len(ids))]
        measured.append(np.array(scored, np.float32))
    assert probe.check(measured, 1e-5, "test") <= 1e-5
    assert probe.token_ids == before.token_ids
    assert np.abs(probe.logprobs[0] - before.logprobs[0]).max() > 1e-3


@pytest.mark.slow
def test_ragged_lease_trains_like_the_same_lease_padded_to_another_batch(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    table = rows_table(0, 4)
    losses = []
    for rows in (4, 12):
        options = {"learning_rate": 1e-3, "loss_type": "grpo"}
        with closing(
            GrpoTrainer(
                GrpoPlan(model_path, tmp_path / str(rows), 1, rows, options, 0, limits=Limits(threads=1))
            )
        ) as grpo:
            metrics = grpo.step(leased(table, 0))
        losses.append((metrics["loss"], metrics["grad_norm"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value", "what"),
    [("advantage", float("nan"), "loss is nan"), ("logprobs", -1e4, "gradient norm is nan")],
)
def test_step_that_is_not_finite_names_step_and_groups_and_changes_no_weight(
    model_path: Path,
    tmp_path: Path,
    rows_table: Rows,
    leased: Leased,
    replace_column: Replace,
    column: str,
    value: float,
    what: str,
) -> None:
    table = rows_table(0, 8)
    # A huge ratio with a positive advantage is clipped: the loss is finite, the gradient is not.
    good = replace_column(table, "advantage", [[1.0]] * 8)
    bad = replace_column(good, column, [[value] * len(row) for row in good.column(column).to_pylist()])
    with closing(trainer(model_path, tmp_path / "run")) as grpo:
        grpo.step(leased(table, 0), checkpoint=True)
        with pytest.raises(TrainingError, match=rf"optimizer step 2: the {what}.*groups group-a, group-b"):
            grpo.step(leased(bad, 1), checkpoint=True)
        assert not grpo.checkpoint_dir(2).exists()
        with pytest.raises(TrainingError, match=f"this trainer was ended by the {what}"):
            grpo.step(leased(table, 2))
        with pytest.raises(TrainingError, match="make a new one from a checkpoint"):
            grpo.save_weights(tmp_path)
        assert grpo.steps_done == 1


@pytest.mark.slow
def test_lease_that_cannot_be_trained_is_refused_and_the_next_one_is_trained(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, replace_column: Replace
) -> None:
    table = rows_table(0, 8)
    masks = [[0] * len(row) for row in table.column("action_mask").to_pylist()]
    refused = [
        (replace_column(table, "logprobs", [None] * 8), RowError, "row 0 has no logprobs"),
        (table.drop_columns(["advantage"]), KeyError, "advantage"),
        (table.slice(0, 0), TrainingError, "the lease has 0 rows"),
        (
            replace_column(table, "action_mask", masks),
            TrainingError,
            "none of the lease's 8 rows has a sampled",
        ),
    ]
    with closing(trainer(model_path, tmp_path / "run")) as grpo:
        for bad, error, message in refused:
            with pytest.raises(error, match=message):
                grpo.step(leased(bad, 0))
        grpo.step(leased(table, 0))
        got = weights(grpo, tmp_path / "got")
    with closing(trainer(model_path, tmp_path / "plain")) as plain:
        plain.step(leased(table, 0))
        assert same(got, weights(plain, tmp_path / "want"))


class HeldBatch:
    """A leased batch whose rows come only when they are let go."""

    def __init__(self, batch: LeasedBatch) -> None:
        self.lease = batch.lease
        self._table = batch.table
        self.asked = threading.Event()
        self.let_go = threading.Event()

    @property
    def table(self) -> pa.Table:
        self.asked.set()
        assert self.let_go.wait(60)
        return self._table


@pytest.mark.slow
def test_save_and_checkpoint_during_a_step_are_refused(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    held = HeldBatch(leased(rows_table(0, 8), 0))
    with closing(trainer(model_path, tmp_path)) as grpo:
        running = threading.Thread(target=grpo.step, args=(held,))
        running.start()
        assert held.asked.wait(60)
        for what, call in (
            ("a checkpoint", grpo.checkpoint),
            ("saving weights", lambda: grpo.save_weights(tmp_path)),
        ):
            with pytest.raises(
                TrainingError, match=f"{what} was asked for while a step or a save is going on"
            ):
                call()
        held.let_go.set()
        running.join(60)
        assert grpo.steps_done == 1
        grpo.checkpoint()
        assert (grpo.checkpoint_dir(1) / "optimizer.pt").is_file()


@pytest.mark.slow
def test_report_measures_the_policies_without_another_forward(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    table = rows_table(3, 6)
    policy = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    nats, versions = [], []
    for row in table.to_pylist():
        ids = torch.tensor([row["token_ids"]])
        scored = policy(ids).logits[0, :-1].detach().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        sampled = np.flatnonzero(np.array(row["action_mask"])[1:])
        nats.append(scored.numpy()[sampled] - np.array(row["logprobs"])[1:][sampled])
        versions.append(np.full(len(sampled), row["version_min"]))
    ratio, version = np.exp(np.concatenate(nats)), np.concatenate(versions)
    with closing(trainer(model_path, tmp_path, options={"loss_type": "grpo"})) as grpo:
        report = grpo.train_on(leased(table, 0))
    metrics = report.metrics
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(ratio.mean(), rel=1e-4)
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(ratio.max(), rel=1e-4)
    assert metrics["sampling/importance_sampling_ratio/p99"] == pytest.approx(
        np.quantile(ratio, 0.99), rel=1e-4
    )
    assert metrics["kl_rollout"] == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-4)
    assert set(report.ess) == {0, 1, 2}
    for v, fraction in report.ess.items():
        mine = ratio[version == v]
        assert fraction == pytest.approx(mine.sum() ** 2 / (mine**2).sum() / len(mine), rel=1e-4)
    assert metrics["tokens"] == len(ratio)
    assert metrics["rows"] == 6
    assert metrics["num_tokens"] == sum(len(row["token_ids"]) for row in table.to_pylist())
    lengths = [len(row["token_ids"]) - row["prompt_length"] for row in table.to_pylist()]
    assert metrics["completions/mean_length"] == pytest.approx(np.mean(lengths))


def trainer_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads of trainers that were started since; of trainers before, some may still be ending."""
    return [one for one in set(threading.enumerate()) - before if one.name == "grpo trainer"]


@pytest.mark.slow
def test_step_past_its_deadline_raises_stalled_and_ends_the_trainer(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    before = set(threading.enumerate())
    grpo = trainer(model_path, tmp_path, limits=Limits(deadline_s=1e-3))
    with pytest.raises(StalledError, match=r"grpo trainer has not finished in 0\.001 s"):
        grpo.step(leased(rows_table(0, 8), 0))
    with pytest.raises(TrainingError, match="ended by StalledError"):
        grpo.step(leased(rows_table(0, 8), 0))

    def closed() -> bool:
        with suppress(StalledError):
            grpo.close()
            return True
        return False

    wait_for(closed)
    assert not trainer_threads(before)


@pytest.mark.slow
def test_all_steps_done_refuses_another_and_still_saves_weights(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    with closing(trainer(model_path, tmp_path / "run", steps=1)) as grpo:
        grpo.step(leased(rows_table(0, 8), 0), checkpoint=True)
        assert (grpo.checkpoint_dir(1) / "optimizer.pt").is_file()
        weights(grpo, tmp_path / "w")
        with pytest.raises(TrainingError, match="all 1 steps of this run are done"):
            grpo.step(leased(rows_table(0, 8), 1))


@pytest.mark.slow
def test_close_ends_the_thread_and_is_idempotent(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    before = set(threading.enumerate())
    grpo = trainer(model_path, tmp_path)
    grpo.step(leased(rows_table(0, 8), 0))
    assert trainer_threads(before)
    grpo.close()
    grpo.close()
    assert not trainer_threads(before)
    with pytest.raises(TrainingError, match=r"ended by close\(\)"):
        grpo.step(leased(rows_table(0, 8), 1))
    assert grpo.steps_done == 1


def test_resume_from_a_folder_without_state_is_refused(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match=r"is not a trainer checkpoint: it has no trainer_state\.json"):
        trainer(model_path, tmp_path, resume_from=tmp_path)


def test_teacher_of_other_tokens_is_refused(model_path: Path, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(model_path, teacher)
    tokenizer = json.loads((teacher / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second, *_ = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (teacher / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(RecipeError, match="another vocabulary"):
        trainer(model_path, tmp_path / "run", objective={"reference": str(teacher)})
