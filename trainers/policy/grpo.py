"""Policy gradients as a step-wise trainer: one leased batch in, one optimizer step done.

TRL owns its loop, so `train()` runs in one thread that is parked between steps. The trainer knows
no buffer and no explorer; when weights are published and leases settled is the run loop's business.
"""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rft_data.core.errors import ResumeError, TrainingError
from rft_data.core.protocols import LeasedBatch
from rft_data.core.rows import StepReport
from trainers.models.adapters import lora_config, write_adapter
from trainers.models.disk import writing
from trainers.models.options import built
from trainers.models.weights import gathered_state, load_policy, load_tokenizer, write_weights
from trainers.policy.batch_metrics import batch_metrics
from trainers.policy.critic import critic_plan
from trainers.policy.experience_grpo import ExperienceGRPOTrainer
from trainers.policy.finite import FiniteGradients
from trainers.policy.full_batch import full_batch
from trainers.policy.grpo_config import ranked_config
from trainers.policy.loop_hooks import CheckpointOrder, LoopHooks, StepOrder
from trainers.policy.objective import objective_of
from trainers.policy.off_policy import off_policy_of
from trainers.ranks.ranks import ALONE, Ranks
from trainers.ranks.threads import every_core, torch_threads


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may use."""

    deadline_s: float = 3600.0
    """Longest wait for a step or a checkpoint."""
    threads: int | None = None
    """CPU threads of torch; None: one for each core of the process. The order of sums, and so the last
    bits of the weights, depends on it."""
    processes: int = 1
    """Data-parallel processes of the trainer."""


NO_LIMITS = Limits()


class GrpoTrainer:
    """TRL's GRPO, one optimizer step at a call.

    Args:
        model_path: folder of the policy before training (and of the KL reference).
        output_dir: folder for checkpoints.
        steps: optimizer steps of the whole run (the learning-rate schedule's length).
        rows_per_step: rows of a full batch; shorter leases are padded.
        options: the recipe's `trl: {...}`, fields of TRL's GRPOConfig.
        seed: of the run.
        resume_from: a folder that `checkpoint_dir` named; continues exactly.
        off_policy: the recipe's `off_policy: {...}`, fields of OffPolicy.
        objective: the stage's `loss`, `batch_ops`, `kl`, and `reference`, the folder of the model that
            the KL terms and teachers' logprobs are of; None: `model_path`. Also `lora`, fields of PEFT's
            LoraConfig; None: every weight is trained.
        ranks: the trainer's processes, each of which makes the same trainer; orders come from the first.
    Raises: RecipeError for bad options; MissingFileError, ResumeError for bad folders; MissingExtraError.
    """

    def __init__(
        self,
        model_path: Path,
        output_dir: Path,
        steps: int,
        rows_per_step: int,
        options: Mapping[str, Any],
        seed: int,
        resume_from: Path | None = None,
        off_policy: Mapping[str, Any] | None = None,
        objective: Mapping[str, Any] | None = None,
        limits: Limits = NO_LIMITS,
        ranks: Ranks = ALONE,
    ) -> None:
        """Load the model."""
        config = ranked_config(output_dir, steps, rows_per_step, options, seed, ranks, limits.deadline_s)
        corrections = off_policy_of(off_policy or {}, config)
        settings = objective or {}
        self._objective = objective_of(settings, options, config, corrections)
        critic = critic_plan(
            settings.get("critic"), self._objective.batch_ops, model_path, resume_from, options
        )
        adapter = lora_config(settings)
        self._base, self._adapted, self._ranks = model_path.absolute(), adapter is not None, ranks
        self._output_dir, self._resume_from, self._steps = output_dir, resume_from, steps
        self._steps_done = self._steps_before = 0 if resume_from is None else _steps_of(resume_from)
        # the newest step whose checkpoint is complete and of this run
        self._saved = self._steps_before if resume_from == self.checkpoint_dir(self._steps_before) else None
        self._threads, self._alone, self._ended_by = limits.threads, threading.Lock(), ""
        self._hooks = LoopHooks("grpo trainer", self._train, limits.deadline_s)
        self._tokenizer = load_tokenizer(model_path)
        source = resume_from if resume_from and adapter is None else model_path
        policy = load_policy(source, model_path, settings.get("reference"), options)
        self._trainer = built(
            lambda: ExperienceGRPOTrainer(
                policy,
                config,
                self._tokenizer,
                self._hooks.batch,
                corrections,
                [FiniteGradients(), self._hooks],
                self._objective,
                adapter,
            ),
            "GRPOTrainer",
        )
        if resume_from is not None:
            self._trainer.take_up(resume_from)
        if critic is not None:
            self._trainer.train_critic(critic)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's."""
        return self._tokenizer

    @property
    def steps_done(self) -> int:
        """Optimizer steps behind the current weights."""
        return self._steps_done

    def step(self, batch: LeasedBatch, *, checkpoint: bool = False) -> dict[str, float]:
        """`train_on`, returning only the metrics."""
        return dict(self.train_on(batch, checkpoint=checkpoint).metrics)

    def train_on(self, batch: LeasedBatch, *, checkpoint: bool = False) -> StepReport:
        """Take one optimizer step on `batch`; with `checkpoint`, also write `checkpoint_dir(steps_done)`.

        Returns: TRL's metrics of the step (`loss`, `grad_norm`, `learning_rate`, `entropy`, ...), those
            of `Drift.take`, and of the batch: mean `reward`, `shaped_reward` and `completion_tokens`,
            the share of `masked` rows, `rows`, and `tokens` trained on. Numbers not finite are left out.
        Raises: RowError, TrainingError for a lease that does not fit, which leaves the trainer as it was.
            TrainingError for a loss or gradient that is not finite, StalledError past the deadline,
            DiskFullError, or what TRL raised: after these it takes no further step and saves nothing.
        """
        with self._exclusive("a step"):
            if self._steps_done >= self._steps:
                raise TrainingError(
                    f"all {self._steps} steps of this run are done; raise 'steps' in the recipe's stage."
                )
            rows = full_batch(
                batch.table,
                self._trainer.args,
                self._tokenizer.pad_token_id,
                self._objective,
                batch.lease.version,
            )
            groups = ", ".join(batch.lease.group_ids)
            where = f"optimizer step {self._steps_done + 1}", f"(lease of groups {groups})"
            self._carry_out(StepOrder(rows, checkpoint), *where)
            self._steps_done += 1
            if checkpoint:
                self._saved = self._steps_done
            drift = self._trainer.drift.take()
            found = {**self._hooks.metrics, **drift.metrics, **batch_metrics(batch.table)}
            found["tokens"] = float(rows["num_items_in_batch"])
        return StepReport({k: v for k, v in found.items() if math.isfinite(v)}, drift.ess)

    def checkpoint(self) -> None:
        """Write `checkpoint_dir(steps_done)` now, between two steps, if it is not written yet.

        Raises: TrainingError before the first step and after a failed one; StalledError past the deadline;
            DiskFullError.
        """
        with self._exclusive("a checkpoint"):
            if self._saved == self._steps_done:
                return
            if self._steps_done == self._steps_before:
                raise TrainingError(
                    "no optimizer step has been taken since this trainer started, so there is nothing to "
                    f"write; start again from '{self._resume_from or 'the model folder'}' instead."
                )
            self._carry_out(CheckpointOrder(), f"the checkpoint of step {self._steps_done}", "")
            self._saved = self._steps_done

    def save_weights(self, directory: Path) -> dict[str, Any]:
        """Write safetensors, config, tokenizer and the probe into an existing folder; of a model with an
        adapter only the adapter and the probe.

        Returns: what the folder's manifest has to say of an adapter; else nothing.
        Raises: TrainingError during a step, and after a failed one; RecipeError for an adapter that cannot
            be published; DiskFullError.
        """
        with self._exclusive("saving weights"), writing("the weight directory", directory):
            with self._ranks.together({"do": "weights"}):
                state = self._state()
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            if self._adapted:
                return write_adapter(model, self._base, self._tokenizer, directory, state)
            write_weights(model, self._tokenizer, directory, state)
            return {}

    def checkpoint_dir(self, step: int) -> Path:
        """Where the checkpoint of `step` is (or would be)."""
        return self._output_dir / f"checkpoint-{step}"

    def close(self) -> None:
        """End training; idempotent.

        Raises: StalledError when a step is still running past the deadline.
        """
        ended_before, self._ended_by = self._ended_by, self._ended_by or "close()"
        with nullcontext() if ended_before else self._ranks.together({"do": "close"}):
            self._hooks.close()

    def follow(self, order: Mapping[str, Any], batch: dict[str, torch.Tensor]) -> None:
        """In the other ranks: this process's part of what rank 0's trainer does.

        Raises: what that does.
        """
        if order["do"] == "step":
            self._hooks.carry_out(StepOrder(batch, order["checkpoint"]))
            self._trainer.drift.take()
        elif order["do"] == "checkpoint":
            self._hooks.carry_out(CheckpointOrder())
        elif order["do"] == "weights":
            self._state()
        else:
            self._hooks.close()

    def _state(self) -> dict[str, torch.Tensor] | None:
        of = self._trainer
        return gathered_state(of.model, of.model_wrapped, of.accelerator, trained_only=self._adapted)

    def _train(self) -> None:
        """TRL's own loop, from the first order to the last, in the hooks' thread."""
        if torch.cuda.is_available():
            torch.cuda.set_device(self._trainer.args.device)  # the current device is per thread
        resume = None if self._resume_from is None else str(self._resume_from)
        with every_core() if self._threads is None else torch_threads(self._threads):
            self._trainer.train(resume_from_checkpoint=resume)

    def _carry_out(self, order: StepOrder | CheckpointOrder, what: str, where: str) -> None:
        step = order if isinstance(order, StepOrder) else None
        if step is None or step.checkpoint:
            # What a killed attempt left there would mix with the new files.
            shutil.rmtree(self.checkpoint_dir(self._steps_done + (step is not None)), ignore_errors=True)
        told = {"do": "step", "checkpoint": step.checkpoint} if step else {"do": "checkpoint"}
        try:
            with (
                writing("the checkpoint", self._output_dir),
                self._ranks.together(told, step.batch if step else {}),
            ):
                self._hooks.carry_out(order)
        except TrainingError as err:
            self._ended_by = str(err)
            raise TrainingError(f"{what}: {err} {where}".rstrip()) from err
        except BaseException as err:
            self._ended_by = repr(err)
            raise

    @contextmanager
    def _exclusive(self, what: str) -> Iterator[None]:
        """One thing at a time, and nothing after a failure.

        Raises: TrainingError.
        """
        if not self._alone.acquire(blocking=False):
            raise TrainingError(f"{what} was asked for while a step or a save is going on; wait for its end.")
        try:
            if self._ended_by:
                raise TrainingError(
                    f"this trainer was ended by {self._ended_by}; make a new one from a checkpoint."
                )
            yield
        finally:
            self._alone.release()


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
