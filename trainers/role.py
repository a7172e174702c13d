"""The trainer as a role: what a run's conductor calls, wherever the trainer lives.

Rows come from the buffer by lease and never through the conductor. It decides neither when to
publish nor what to train on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rft_data.core.errors import TrainingError
from rft_data.core.files import flush, write_manifest
from rft_data.core.protocols import BufferClient
from rft_data.core.rows import FileFacts, Lease, StepReport
from trainers.models.disk import writing
from trainers.policy.expert_rows import with_ids
from trainers.policy.grpo import GrpoTrainer, Limits
from trainers.ranks.launch import OtherRanks, other_ranks
from trainers.ranks.ranks import ALONE, Ranks


class TrainerRole:
    """A step-wise trainer that fetches its own rows."""

    def __init__(
        self,
        buffer: BufferClient,
        trainer: GrpoTrainer,
        pipeline_hash: str,
        others: OtherRanks | None = None,
    ) -> None:
        """`pipeline_hash` names the operators whose advantages are trained on.

        `others`: the trainer's other ranks, which end with it.
        """
        self._others = others
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
        batch = with_ids(
            self._buffer.leased(lease, self._pipeline_hash), self._buffer, self._trainer.tokenizer
        )
        loaded = time.perf_counter()
        report = self._trainer.train_on(batch, checkpoint=checkpoint)
        seconds = {"load_s": loaded - started, "step_s": time.perf_counter() - loaded}
        files = self._flushed() if checkpoint else {}
        return StepReport({**report.metrics, **seconds}, report.ess, files)

    def save_weights(self, directory: str, header: dict[str, Any]) -> str:
        """Write weights, probe and, last, a manifest with `header` into an existing empty folder.

        Returns: the manifest's digest.
        Raises: what `GrpoTrainer.save_weights` does.
        """
        folder = Path(directory)
        facts = self._trainer.save_weights(folder)
        with writing("the manifest", folder):
            return write_manifest(folder, {**header, **facts})

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
        """End training, and the other ranks; idempotent."""
        try:
            self._trainer.close()
        finally:
            if self._others is not None:
                self._others.close()


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

    Args:
        limits: fields of `Limits`. Of its processes this is the first; the others are children of it, or
            those that torchrun started.
    Raises: what GrpoTrainer does, in whichever rank; RoleDiedError, StalledError when one does not come.
    """
    arguments = {
        "model_path": model,
        "output_dir": output_dir,
        "steps": steps,
        "rows_per_step": rows_per_step,
        "options": dict(options),
        "seed": seed,
        "resume_from": resume_from,
        "off_policy": dict(off_policy),
        "objective": dict(objective),
        "limits": dict(limits),
    }
    others = other_ranks(limits.get("processes", 1), limits["deadline_s"])
    try:
        trainer = lead_trainer(arguments, ALONE if others is None else others.ranks)
    except BaseException:
        if others is not None:
            others.close(now=True)
        raise
    return TrainerRole(buffer, trainer, pipeline_hash, others)


def lead_trainer(arguments: Mapping[str, Any], ranks: Ranks) -> GrpoTrainer:
    """Rank 0's trainer, made while the other ranks make theirs of the same arguments.

    Raises: what making one does, in whichever rank.
    """
    with ranks.together({"do": "make", "arguments": dict(arguments)}):
        return make_trainer(arguments, ranks)


def make_trainer(arguments: Mapping[str, Any], ranks: Ranks) -> GrpoTrainer:
    """A rank's trainer: `GrpoTrainer` of JSON arguments, its paths as text and its limits as a mapping.

    Raises: what GrpoTrainer does.
    """
    resume_from = arguments["resume_from"]
    paths = {
        "model_path": Path(arguments["model_path"]),
        "output_dir": Path(arguments["output_dir"]),
        "resume_from": None if resume_from is None else Path(resume_from),
    }
    return GrpoTrainer(**{**arguments, **paths, "limits": Limits(**arguments["limits"])}, ranks=ranks)
