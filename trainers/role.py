"""The trainer as a role: what a run's conductor calls, wherever the trainer lives.

Rows come from the buffer by lease and never through the conductor. It decides neither when to
publish nor what to train on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rft_data.errors import TrainingError
from rft_data.manifest import flush, write_manifest
from rft_data.protocols import BufferClient
from rft_data.rows import FileFacts, Lease, StepReport
from trainers.disk import writing
from trainers.grpo import GrpoTrainer, Limits


class TrainerRole:
    """A step-wise trainer that fetches its own rows."""

    def __init__(self, buffer: BufferClient, trainer: GrpoTrainer, pipeline_hash: str) -> None:
        """`pipeline_hash` names the operators whose advantages are trained on."""
        self._buffer = buffer
        self._trainer = trainer
        self._pipeline_hash = pipeline_hash

    def step(self, lease: Lease, checkpoint: bool) -> StepReport:
        """Read the lease's rows and take one optimizer step; with `checkpoint`, write its state too.

        Returns: what `GrpoTrainer.train_on` does, seconds `load_s` and `step_s`, the checkpoint's files.
        Raises: TrainingError when the lease is not the next step's; else what reading and training raise.
        """
        done = self._trainer.steps_done
        if lease.step != done:
            raise TrainingError(
                f"the lease is of step {lease.step}, but this trainer has taken {done} steps; "
                "a lease is trained once: resume the run."
            )
        started = time.perf_counter()
        batch = self._buffer.leased(lease, self._pipeline_hash)
        loaded = time.perf_counter()
        report = self._trainer.train_on(batch, checkpoint=checkpoint)
        seconds = {"load_s": loaded - started, "step_s": time.perf_counter() - loaded}
        files = self._flushed() if checkpoint else {}
        return StepReport({**report.metrics, **seconds}, report.ess, files)

    def save_weights(self, directory: str, header: dict[str, Any]) -> str:
        """Write weights, probe and, last, a manifest with `header` into an existing empty folder.

        Returns: the manifest's digest.
        Raises: TrainingError during a step, and after a failed one; DiskFullError.
        """
        folder = Path(directory)
        self._trainer.save_weights(folder)
        with writing("the manifest", folder):
            return write_manifest(folder, header)

    def checkpoint(self) -> dict[str, FileFacts]:
        """Write the trainer's state of `steps_done` now, if it is not written yet; returns its files."""
        self._trainer.checkpoint()
        return self._flushed()

    def _flushed(self) -> dict[str, FileFacts]:
        folder = self._trainer.checkpoint_dir(self._trainer.steps_done)
        with writing("the checkpoint", folder):
            return flush(folder)

    def steps_done(self) -> int:
        """Optimizer steps behind the current weights."""
        return self._trainer.steps_done

    def checkpoint_dir(self, step: int) -> str:
        """Where the checkpoint of `step` is (or would be)."""
        return str(self._trainer.checkpoint_dir(step))

    def close(self) -> None:
        """End training; idempotent."""
        self._trainer.close()


def grpo_role(
    buffer: BufferClient,
    *,
    model: str,
    output_dir: str,
    steps: int,
    rows_per_step: int,
    options: Mapping[str, Any],
    seed: int,
    resume_from: str | None,
    pipeline_hash: str,
    off_policy: Mapping[str, Any],
    objective: Mapping[str, Any],
    limits: Mapping[str, Any],
) -> TrainerRole:
    """Policy gradients as a role: `GrpoTrainer` with JSON arguments.

    Args: limits: fields of `Limits`.
    Raises: what GrpoTrainer does.
    """
    trainer = GrpoTrainer(
        model_path=Path(model),
        output_dir=Path(output_dir),
        steps=steps,
        rows_per_step=rows_per_step,
        options=options,
        seed=seed,
        resume_from=None if resume_from is None else Path(resume_from),
        off_policy=off_policy,
        objective=objective,
        limits=Limits(**limits),
    )
    return TrainerRole(buffer, trainer, pipeline_hash)
