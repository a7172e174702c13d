"""Policy gradients as a step-wise trainer: one leased batch in, one optimizer step done.

TRL's `train()` cannot be called step by step, so it runs in one thread, which waits between steps. The
trainer knows no buffer and no explorer. The run's loop decides when weights are published and leases settled.
"""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow.compute as pc
import torch
from transformers import PreTrainedTokenizerBase

from rft_data.core.errors import TrainingError
from rft_data.core.protocols import LeasedBatch
from rft_data.core.rows import StepReport
from trainers.models.adapters import lora_config, write_adapter
from trainers.models.disk import writing
from trainers.models.options import built
from trainers.models.weights import copy_processor, gathered_state, load_tokenizer, write_weights
from trainers.policy.batch_metrics import batch_metrics
from trainers.policy.critic import critic_plan
from trainers.policy.experience_grpo import ExperienceGRPOTrainer
from trainers.policy.finite import FiniteGradients
from trainers.policy.full_batch import full_batch
from trainers.policy.grpo_config import ranked_config
from trainers.policy.host_memory import HostMemory
from trainers.policy.images import model_images
from trainers.policy.loop_hooks import CheckpointOrder, LoopHooks, StepOrder
from trainers.policy.objective import make_objective
from trainers.policy.off_policy import off_policy_corrections
from trainers.policy.plan import GrpoPlan
from trainers.policy.start import checkpoint_step, load_start
from trainers.ranks.ranks import ALONE, Order, Ranks
from trainers.ranks.threads import every_core, torch_threads


class GrpoTrainer:
    """TRL's GRPO, one optimizer step at a call."""

    def __init__(self, plan: GrpoPlan, ranks: Ranks = ALONE) -> None:
        """Load the model.

        Args: ranks: the trainer's processes. Each makes the same trainer; orders come from rank 0.
        Raises: RecipeError for bad options; MissingFileError, ResumeError for bad folders; MissingExtraError.
        """
        config = ranked_config(plan, ranks)
        corrections = off_policy_corrections(plan.off_policy, config)
        settings = plan.objective
        objective = make_objective(settings, plan.options, config, corrections)
        critic = critic_plan(
            settings.get("critic"), objective.batch_ops, plan.model_path, plan.resume_from, plan.options
        )
        adapter = lora_config(settings.get("lora"), settings.get("reference"))
        self._plan = plan
        self._ranks = ranks
        self._base = plan.model_path.absolute()
        self._objective, self._adapted = objective, adapter is not None
        self._steps_done = 0 if plan.resume_from is None else checkpoint_step(plan.resume_from)
        self._steps_before = self._steps_done
        is_own = plan.resume_from == self.checkpoint_dir(self._steps_done)
        self._saved = (
            self._steps_done if is_own else None
        )  # newest step whose checkpoint is complete and ours
        self._one_at_a_time = threading.Lock()
        self._ended_by = ""
        self._hooks = LoopHooks("grpo trainer", self._train, plan.limits.deadline_s)
        self._tokenizer = load_tokenizer(plan.model_path)
        self.images = model_images(plan.model_path, settings)
        policy = load_start(plan)
        self._trainer = built(
            lambda: ExperienceGRPOTrainer(
                policy,
                config,
                self._tokenizer,
                self._hooks.batch,
                corrections,
                [FiniteGradients(), self._hooks],
                objective,
                adapter,
            ),
            "GRPOTrainer",
        )
        self._trainer.images = self.images
        if plan.resume_from is not None:
            self._trainer.load_checkpoint_extras(plan.resume_from)
        if critic is not None:
            self._trainer.train_critic(critic, split=plan.limits.shard is not None)
        if plan.limits.shard is not None:
            self._trainer.split()
        self._memory = HostMemory(self._trainer)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the policy."""
        return self._tokenizer

    @property
    def steps_done(self) -> int:
        """Optimizer steps taken so far, those before a resume included."""
        return self._steps_done

    def step(self, batch: LeasedBatch, *, checkpoint: bool = False) -> dict[str, float]:
        """Do `train_on` and return only its metrics."""
        return dict(self.train_on(batch, checkpoint=checkpoint).metrics)

    def train_on(self, batch: LeasedBatch, *, checkpoint: bool = False) -> StepReport:
        """Take one optimizer step on `batch`; with `checkpoint`, also write `checkpoint_dir(steps_done)`.

        Returns: TRL's metrics of the step (`loss`, `grad_norm`, `learning_rate`, `entropy`, ...), those
            of `Drift.take`, those of `batch_metrics`, `tokens` trained on, and `num_tokens`, all tokens of
            the leases so far, prompts included; only finite numbers.
        Raises: RowError, TrainingError for a lease that does not fit; the trainer is then unchanged.
            TrainingError for a loss or gradient that is not finite, StalledError past the deadline,
            DiskFullError, or what TRL raised: after these the trainer takes no step and saves nothing.
        """
        with self._exclusive("a step"):
            if self._steps_done >= self._plan.steps:
                raise TrainingError(
                    f"all {self._plan.steps} steps of this run are done; raise 'steps' in the recipe's stage."
                )
            rows = full_batch(
                batch.table,
                self._trainer.args,
                self._tokenizer.pad_token_id,
                self._objective,
                batch.lease.version,
            )
            if self.images is not None:
                rows |= self.images.tensors(batch, len(rows["prompt_ids"]))
            groups = ", ".join(batch.lease.group_ids)
            what = f"optimizer step {self._steps_done + 1}"
            tokens = int(pc.sum(pc.list_value_length(batch.table["token_ids"])).as_py() or 0)
            self._carry_out(StepOrder(rows, checkpoint, tokens), what, f"(lease of groups {groups})")
            self._steps_done += 1
            if checkpoint:
                self._saved = self._steps_done
            drift = self._trainer.drift.take()
            kept = self._trainer.tokens.take(batch.table["seq"].to_pylist())
            found = {**self._hooks.metrics, **drift.metrics, **batch_metrics(batch.table)}
            found["tokens"] = float(rows["num_items_in_batch"])
        return StepReport({k: v for k, v in found.items() if math.isfinite(v)}, drift.ess, tokens=kept)

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
                    f"write; start again from '{self._plan.resume_from or 'the model folder'}' instead."
                )
            self._carry_out(CheckpointOrder(), f"the checkpoint of step {self._steps_done}", "")
            self._saved = self._steps_done

    def save_weights(self, directory: Path) -> dict[str, dict[str, object]]:
        """Write safetensors, config, tokenizer and the probe into an existing folder; of a model with an
        adapter only the adapter and the probe.

        Returns: the entry about the adapter for the folder's manifest; empty without one.
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
            copy_processor(self._base, directory)
            return {}

    def sleep(self) -> None:
        """Keep nothing on the device until `wake`; idempotent. What stays: see `HostMemory`.

        Raises: TrainingError during a step, and after a failed one.
        """
        with self._exclusive("sleep", asleep=True), self._ranks.together({"do": "sleep"}):
            self._memory.sleep()

    def wake(self) -> None:
        """Take the device back, with every tensor as it was; idempotent. Raises: as `sleep`."""
        with self._exclusive("waking up", asleep=True), self._ranks.together({"do": "wake"}):
            self._memory.wake()

    def checkpoint_dir(self, step: int) -> Path:
        """Folder of the checkpoint of `step`, which need not exist."""
        return self._plan.output_dir / f"checkpoint-{step}"

    def close(self) -> None:
        """End training; idempotent.

        Raises: StalledError when a step is still running past the deadline.
        """
        ended_before, self._ended_by = self._ended_by, self._ended_by or "close()"
        with nullcontext() if ended_before else self._ranks.together({"do": "close"}):
            self._hooks.close()

    def follow(self, order: Order, batch: dict[str, torch.Tensor]) -> None:
        """In the other ranks: do this process's part of an order of rank 0's trainer.

        Raises: what the method of rank 0 that gave the order raises.
        """
        if order["do"] == "step":
            self._hooks.carry_out(StepOrder(batch, order["checkpoint"]))
            self._trainer.drift.take()
        elif order["do"] == "checkpoint":
            self._hooks.carry_out(CheckpointOrder())
        elif order["do"] == "weights":
            self._state()
        elif order["do"] == "sleep":
            self._memory.sleep()
        elif order["do"] == "wake":
            self._memory.wake()
        else:
            self._hooks.close()

    def _state(self) -> dict[str, torch.Tensor] | None:
        trainer = self._trainer
        return gathered_state(
            trainer.model, trainer.model_wrapped, trainer.accelerator, trained_only=self._adapted
        )

    def _train(self) -> None:
        """TRL's own loop, from the first order to the last, in the hooks' thread."""
        if torch.cuda.is_available():
            torch.cuda.set_device(self._trainer.args.device)  # the current device is per thread
        resume_from, threads = self._plan.resume_from, self._plan.limits.threads
        resume = None if resume_from is None else str(resume_from)
        with every_core() if threads is None else torch_threads(threads):
            self._trainer.train(resume_from_checkpoint=resume)

    def _carry_out(self, order: StepOrder | CheckpointOrder, what: str, where: str) -> None:
        step = order if isinstance(order, StepOrder) else None
        if step is None or step.checkpoint:
            # Files that a killed attempt left there would mix with the new ones.
            shutil.rmtree(self.checkpoint_dir(self._steps_done + (step is not None)), ignore_errors=True)
        rank_order: Order = {"do": "step", "checkpoint": step.checkpoint} if step else {"do": "checkpoint"}
        try:
            with (
                writing("the checkpoint", self._plan.output_dir),
                self._ranks.together(rank_order, step.batch if step else {}),
            ):
                self._hooks.carry_out(order)
        except TrainingError as err:
            self._ended_by = str(err)
            raise TrainingError(f"{what}: {err} {where}".rstrip()) from err
        except BaseException as err:
            self._ended_by = repr(err)
            raise

    @contextmanager
    def _exclusive(self, what: str, *, asleep: bool = False) -> Iterator[None]:
        """Around one operation: none begins while another runs, and none after a failure.

        Args: asleep: whether it may begin while the trainer sleeps.
        Raises: TrainingError where it may not begin.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            raise TrainingError(f"{what} was asked for while a step or a save is going on; wait for its end.")
        try:
            if self._ended_by:
                raise TrainingError(
                    f"this trainer was ended by {self._ended_by}; make a new one from a checkpoint."
                )
            if self._memory.asleep and not asleep:
                raise TrainingError(f"{what} was asked for while the trainer sleeps; call wake first.")
            yield
        finally:
            self._one_at_a_time.release()
