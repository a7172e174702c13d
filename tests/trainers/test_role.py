"""The trainer as a role, over a real buffer: leases in, reports and weight directories out."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_table
from rft_data.core.errors import IntegrityError, RecipeError, TrainingError
from rft_data.core.files import read_manifest
from rft_data.core.groups import Lease
from rft_data.core.rows import Experience, TaskKey, experience_id_of, now
from rft_data.core.schema import ANNOTATIONS
from rft_data.weights.probe import Probe
from trainers.role import TrainerRole, grpo_role

PIPELINE = "pipeline"
TASK = TaskKey("arith", "t0")


def experience(number: int) -> Experience:
    rng = np.random.default_rng(number)
    prompt, total = 3, int(rng.integers(8, 14))
    return Experience(
        experience_id=experience_id_of("run", TASK, 0, "run/g0", number),
        source="rollout",
        run_id="run",
        taskset=TASK.taskset,
        task_id=TASK.task_id,
        group_id="run/g0",
        member=number,
        token_ids=rng.integers(5, 100, total).tolist(),
        prompt_length=prompt,
        action_mask=[0] * prompt + [1] * (total - prompt),
        logprobs=[0.0] * prompt + rng.normal(-5.5, 0.2, total - prompt).tolist(),
        version_min=number % 2,
        version_max=1,
        version_spans=((1, prompt, total),),
        messages=({"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}),
        completion_text="2",
        finish_reason="stop",
        reward=float(number % 2),
    )


def annotation(seq: int) -> dict[str, object]:
    return {
        "seq": seq,
        "experience_id": experience(seq).experience_id,
        "pipeline_hash": PIPELINE,
        "verdict": "kept",
        "dropped_by": "",
        "reason": "",
        "advantage": [1.0 if seq % 2 else -1.0],
        "shaped_reward": None,
        "masked": None,
        "stats": {},
        "created_at": now(),
    }


def lease(step: int, seqs: range) -> Lease:
    return Lease("trainer", step, 0, step, tuple(seqs), ("run/g0",), content_id(list(seqs)))


def role(buffer: Buffer, model_path: Path, out: Path, **changes: object) -> TrainerRole:
    plan = {
        "model_path": str(model_path),
        "output_dir": str(out),
        "steps": 3,
        "rows_per_step": 4,
        "options": {"learning_rate": 1e-3},
        "seed": 0,
        "resume_from": None,
        "off_policy": {"old_logprobs": "recompute", "importance": "masked", "cap": 1.5},
        "objective": {},
        "limits": {"deadline_s": 60.0, "threads": 1},
    }
    return grpo_role(buffer, plan={**plan, **changes}, pipeline_hash=PIPELINE)


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[Buffer]:
    with Buffer(tmp_path / "buffer") as opened:
        opened.append([experience(number) for number in range(12)])
        opened.annotate(to_table([annotation(seq) for seq in range(12)], ANNOTATIONS))
        yield opened


@pytest.mark.slow
def test_role_trains_leases_and_writes_weights_that_prove_themselves(
    buffer: Buffer, model_path: Path, tmp_path: Path
) -> None:
    trainer = role(buffer, model_path, tmp_path / "run")
    report = trainer.step(lease(0, range(4)), False)
    assert trainer.steps_done() == 1
    wanted = {"loss", "grad_norm", "learning_rate", "entropy", "reward", "completions/mean_length", "tokens"}
    wanted |= {
        "load_s",
        "step_s",
        "sampling/importance_sampling_ratio/mean",
        "sampling/importance_sampling_ratio/max",
        "sampling/importance_sampling_ratio/p99",
        "kl_rollout",
    }
    assert wanted | {"importance/mean", "importance/capped"} <= report.metrics.keys()
    assert report.metrics["reward"] == 0.5
    assert set(report.ess) == {0, 1}
    assert all(0 < fraction <= 1 for fraction in report.ess.values())

    folder = tmp_path / "v1"
    folder.mkdir()
    header = {"run_id": "run", "version": 1, "step": 1}
    digest = trainer.save_weights(str(folder), header)
    manifest = read_manifest(folder)
    assert {name: manifest[name] for name in header} == header
    assert len(digest) == 32
    assert {"model.safetensors", "config.json", "probe/probe.safetensors"} <= manifest["files"].keys()
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert len(Probe.load(folder).token_ids) == 2
    trainer.close()
    trainer.close()


@pytest.mark.heavy
def test_role_refuses_a_lease_of_another_step_and_resumes_where_it_stood(
    buffer: Buffer, model_path: Path, tmp_path: Path
) -> None:
    first = role(buffer, model_path, tmp_path / "run")
    seen = first.step(lease(0, range(4)), False).metrics["num_tokens"]
    with pytest.raises(TrainingError, match="the lease is of step 0, but this trainer has taken 1 steps"):
        first.step(lease(0, range(4)), False)
    first.checkpoint()
    first.close()
    again = role(buffer, model_path, tmp_path / "run", resume_from=first.checkpoint_dir(1))
    assert again.steps_done() == 1
    rows = buffer.take(range(8)).column("token_ids").to_pylist()
    assert seen == sum(map(len, rows[:4]))
    assert again.step(lease(1, range(4, 8)), True).metrics["num_tokens"] == sum(map(len, rows))
    assert (Path(again.checkpoint_dir(2)) / "trainer_state.json").is_file()
    again.close()


@pytest.mark.slow
def test_role_refuses_a_damaged_lease_and_goes_on(buffer: Buffer, model_path: Path, tmp_path: Path) -> None:
    trainer = role(buffer, model_path, tmp_path / "run")
    bad = Lease("trainer", 0, 0, 0, (0, 1), ("run/g0",), "another digest")
    with pytest.raises(IntegrityError, match="do not match its digest"):
        trainer.step(bad, False)
    assert trainer.step(lease(0, range(2)), False).metrics["rows"] == 2
    trainer.close()


@pytest.mark.slow
def test_role_refuses_settings_that_contradict_before_it_loads_a_model(
    buffer: Buffer, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=r"off_policy\.importance is 'masked' with old_logprobs 'rollout'"):
        role(buffer, tmp_path / "no-model", tmp_path, off_policy={"importance": "masked"})


def test_role_methods_say_their_types_at_run_time() -> None:
    methods = dict(inspect.getmembers(TrainerRole, inspect.isfunction))
    for name in ("step", "save_weights", "checkpoint", "steps_done", "checkpoint_dir", "close"):
        assert "return" in typing.get_type_hints(methods[name])
