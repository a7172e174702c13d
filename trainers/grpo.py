"""GRPO as a step-wise trainer: one leased batch in, one optimizer step done.

TRL owns its loop, so `train()` runs in one thread that is parked between steps. The trainer knows
no buffer and no explorer; when weights are published and leases settled is the run loop's business.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState

from rft_data.errors import ResumeError, TrainingError
from rft_data.protocols import LeasedBatch
from trainers.experience_grpo import ExperienceGRPOTrainer
from trainers.finite import FiniteGradients
from trainers.grpo_config import grpo_config
from trainers.parked import ParkedThread
from trainers.threads import every_core
from trainers.weights import load_model, load_tokenizer, write_weights


@dataclass(frozen=True, slots=True)
class _Order:
    """What one step is to do."""

    table: pa.Table
    checkpoint: bool


class _Steps(TrainerCallback):
    """Hooks of TRL's loop: fetch an order, save if asked, keep the metrics."""

    def __init__(self) -> None:
        self.thread: ParkedThread[_Order]
        self.order: _Order | None = None
        self.metrics: dict[str, float] = {}

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_save = self.order is not None and self.order.checkpoint

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" in logs:
            self.metrics = {
                name: float(value) for name, value in logs.items() if isinstance(value, int | float)
            }

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # One epoch is one step (see ExperienceGRPOTrainer), and here its log and checkpoint are written.
        if not control.should_training_stop:
            self.order = self.thread.park()
            control.should_training_stop = self.order is None


class GrpoTrainer:
    """`rft_data.protocols.Trainer` on TRL's GRPO."""

    def __init__(
        self,
        model_path: Path,
        output_dir: Path,
        steps: int,
        rows_per_step: int,
        options: Mapping[str, Any],
        seed: int,
        resume_from: Path | None = None,
        deadline_s: float = 3600.0,
    ) -> None:
        """Load the model.

        Args:
            model_path: folder of the policy before training (and of the KL reference).
            output_dir: folder for checkpoints.
            steps: optimizer steps of the whole run (the learning-rate schedule's length).
            rows_per_step: rows of a full batch; shorter leases are padded.
            options: the recipe's `trl: {...}`, fields of TRL's GRPOConfig.
            seed: of the run.
            resume_from: a folder that `checkpoint_dir` named; continues exactly.
            deadline_s: longest wait for one step.
        Raises: RecipeError for bad options; MissingFileError, ResumeError for bad folders.
        """
        config = grpo_config(output_dir, steps=steps, rows_per_step=rows_per_step, options=options, seed=seed)
        self._steps = steps
        self._output_dir = output_dir
        self._resume_from = resume_from
        self._steps_done = 0 if resume_from is None else _steps_of(resume_from)
        model = load_model(resume_from or model_path, **(options.get("model_init_kwargs") or {}))
        # TRL loads the reference model from here; a resumed policy must not be its own reference.
        model.config._name_or_path = str(model_path)
        self._tokenizer = load_tokenizer(model_path)
        self._hooks = _Steps()
        self._trainer = ExperienceGRPOTrainer(
            model, config, self._tokenizer, self._leased_table, [FiniteGradients(), self._hooks]
        )
        # It would print a line per step on stdout.
        self._trainer.remove_callback(PrinterCallback)
        if self._trainer.accelerator.num_processes != 1:
            raise TrainingError(
                "GrpoTrainer runs in one process for now; start it without torchrun or accelerate."
            )
        self._thread: ParkedThread[_Order] = ParkedThread("grpo trainer", self._train, deadline_s)
        self._hooks.thread = self._thread
        self._ended_by: str | None = None

    @property
    def steps_done(self) -> int:
        """Optimizer steps behind the current weights."""
        return self._steps_done

    def step(self, batch: LeasedBatch, *, checkpoint: bool = False) -> dict[str, float]:
        """Take one optimizer step on `batch`; with `checkpoint`, also write `checkpoint_dir(steps_done)`.

        Returns: TRL's metrics of the step (`loss`, `grad_norm`, `learning_rate`, `entropy`, ...) and
            the batch's mean `reward`.
        Raises: TrainingError when the loss or a gradient is not finite, when the lease does not fit,
            or after an earlier failure; StalledError past the deadline; else what TRL raised.
        """
        self._require_usable()
        if self._steps_done >= self._steps:
            raise TrainingError(
                f"all {self._steps} steps of this run are done; raise 'steps' in the recipe's stage."
            )
        step = self._steps_done + 1
        try:
            self._thread.turn(_Order(batch.table, checkpoint))
        except TrainingError as err:
            self._ended_by = str(err)
            groups = ", ".join(batch.lease.group_ids)
            raise TrainingError(f"optimizer step {step}: {err} (lease of groups {groups})") from err
        except BaseException as err:
            self._ended_by = repr(err)
            raise
        self._steps_done = step
        return {**self._hooks.metrics, **_mean_rewards(batch.table)}

    def save_weights(self, directory: Path) -> None:
        """Write safetensors, config, tokenizer and the probe into an existing folder.

        Raises: TrainingError after a failed step (the weights may be half-changed).
        """
        self._require_usable()
        write_weights(self._trainer.accelerator.unwrap_model(self._trainer.model), self._tokenizer, directory)

    def checkpoint_dir(self, step: int) -> Path:
        """Where the checkpoint of `step` is (or would be)."""
        return self._output_dir / f"checkpoint-{step}"

    def close(self) -> None:
        """End training; idempotent.

        Raises: StalledError when a step is still running past the deadline.
        """
        self._ended_by = self._ended_by or "close()"
        self._thread.close()

    def _train(self) -> None:
        """The thread's work: TRL's own loop, from the first order to the last."""
        if torch.cuda.is_available():
            torch.cuda.set_device(self._trainer.args.device)  # the current device is per thread
        self._hooks.order = self._thread.park()
        if self._hooks.order is not None:
            resume = None if self._resume_from is None else str(self._resume_from)
            with every_core():
                self._trainer.train(resume_from_checkpoint=resume)

    def _leased_table(self) -> pa.Table:
        if self._hooks.order is None:
            raise TrainingError(
                "TRL asked for a batch that no step had ordered; this is a defect of GrpoTrainer"
            )
        return self._hooks.order.table

    def _require_usable(self) -> None:
        if self._ended_by is not None:
            raise TrainingError(
                f"this trainer was ended by {self._ended_by}; make a new one from a checkpoint."
            )


def _steps_of(checkpoint: Path) -> int:
    """Optimizer steps behind a checkpoint.

    Raises: ResumeError when the folder is not a complete checkpoint.
    """
    state = checkpoint / "trainer_state.json"
    if not state.is_file():
        raise ResumeError(
            f"'{checkpoint}' is not a trainer checkpoint: it has no {state.name}; resume from another."
        )
    return int(json.loads(state.read_text())["global_step"])


def _mean_rewards(table: pa.Table) -> dict[str, float]:
    """Mean of `reward` and `shaped_reward` over the rows that have one."""
    means = {
        name: pc.mean(table.column(name)).as_py()
        for name in ("reward", "shaped_reward")
        if name in table.schema.names
    }
    return {name: mean for name, mean in means.items() if mean is not None and math.isfinite(mean)}
