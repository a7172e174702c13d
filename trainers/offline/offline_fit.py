"""The training loop of an offline stage: TRL's own, with our errors; keeps losses and writes the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from rft_data.core.errors import Stopped, TrainingError
from rft_data.core.failpoints import failpoint
from trainers.models.adapters import adapter_scales, merged_model
from trainers.models.disk import writing
from trainers.models.weights import copy_processor, write_weights
from trainers.offline.stage_checkpoints import StageCheckpoints
from trainers.offline.steps_taken import note_numbers, note_steps
from trainers.policy.finite import FiniteGradients

log = logging.getLogger(__name__)

_POINTS = 1000
"""Numbers of at most so many steps are kept."""
_NOT_METRICS = ("epoch", "num_tokens", "total_flos", "step")
"""TRL's count of tokens begins anew when a stage is resumed."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The figures of a stage's training."""

    metrics: Mapping[str, float]
    """`loss_first`, `loss_last`, `steps` and `wall_s`."""
    history: Sequence[Mapping[str, float]]
    """Numbers of single optimizer steps, each with its `step` (from 1); evenly thinned to 1,000."""


class Progress(TrainerCallback):  # type: ignore[misc]
    """Notes each step with its numbers, and logs a line for each tenth of them."""

    def __init__(self, label: str) -> None:
        """`label`: what the stage is called in the log."""
        self._label = label

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: Mapping[str, float],
        **kwargs: object,
    ) -> None:
        """Called with the numbers of each step."""
        if "loss" not in logs:
            return
        failpoint("stage.step")
        note_numbers(Path(args.output_dir), _point({**logs, "step": state.global_step}))
        note_steps(Path(args.output_dir), state.global_step, state.max_steps)
        if state.global_step % max(1, state.max_steps // 10) == 0:
            log.info(
                "%s step %d/%d  loss %.3f", self._label, state.global_step, state.max_steps, logs["loss"]
            )


def callbacks(label: str) -> list[TrainerCallback]:
    """The callbacks of every offline trainer."""
    return [FiniteGradients(), Progress(label)]


def fit(trainer: Trainer) -> Fitted:
    """Train to the last step of the trainer's configuration, from the newest checkpoint of the stage.

    Raises: TrainingError when there is no row, TRL refuses the options, or a loss or gradient is not finite;
        no model is written then. RecipeError, before the first step, for an adapter that cannot be merged.
        Stopped, after a checkpoint, when the stage was asked to.
    """
    adapter_scales(trainer.model)
    if not len(trainer.train_dataset):
        raise TrainingError("no example is left after 'trl.max_length'; raise it, or choose shorter rows.")
    trainer.remove_callback(PrinterCallback)
    started = time.perf_counter()
    checkpoints = StageCheckpoints(trainer)
    try:
        with writing("a checkpoint of the stage", checkpoints.folder.parent):
            trainer.train(resume_from_checkpoint=checkpoints.newest())
    except TrainingError as err:
        step = trainer.state.global_step + 1
        raise TrainingError(f"optimizer step {step}: {err}. No model is written.") from err
    except (ValueError, TypeError, ImportError) as err:
        raise TrainingError(
            f"TRL cannot train with the stage's 'trl' options: {err} No model is written."
        ) from err
    if checkpoints.stopped:
        raise Stopped(
            f"stopped at optimizer step {trainer.state.global_step} of {trainer.state.max_steps}, as asked"
        )
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    if not logged:
        raise TrainingError("no optimizer step was taken; give 'trl.max_steps' or 'trl.num_train_epochs'.")
    metrics = {
        "loss_first": float(logged[0]["loss"]),
        "loss_last": float(logged[-1]["loss"]),
        "steps": float(len(logged)),
        "wall_s": time.perf_counter() - started,
    }
    checkpoints.remove()
    every = -(-len(logged) // _POINTS)
    return Fitted(metrics, [_point(entry) for entry in logged[::every]])


def _point(entry: Mapping[str, float]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in entry.items() if name not in _NOT_METRICS}
    return {"step": float(entry["step"]), **numbers}


def save(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, base: Path, folder: Path) -> None:
    """Write the trained policy into `folder`, made if need be, as a weight directory without a manifest.

    An adapter is merged into the weights that are written. `base`: the folder of the model before training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, state = merged_model(trainer.accelerator.unwrap_model(trainer.model))
    write_weights(model, tokenizer, folder, state)
    copy_processor(base, folder)
