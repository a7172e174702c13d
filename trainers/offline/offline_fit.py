"""One offline stage's training loop: TRL's, with its failures as ours, its losses kept, its model written."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from rft_data.core.errors import TrainingError
from rft_data.core.failpoints import failpoint
from trainers.models.adapters import merged_model, scales_of
from trainers.models.weights import write_weights
from trainers.policy.finite import FiniteGradients

log = logging.getLogger(__name__)

_POINTS = 1000
"""Most steps whose numbers are kept."""
_NOT_METRICS = ("epoch", "num_tokens", "total_flos", "step")


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a stage's training measured."""

    metrics: Mapping[str, float]
    """`loss_first`, `loss_last`, `steps` and `wall_s`."""
    history: Sequence[Mapping[str, float]]
    """Numbers of single optimizer steps, each with its `step` (from 1); evenly thinned to 1,000."""


class Progress(TrainerCallback):  # type: ignore[misc]
    """A line for each tenth of the steps."""

    def __init__(self, label: str) -> None:
        """`label`: what the stage is called in the log."""
        self._label = label

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called with the numbers of each step."""
        if "loss" not in kwargs["logs"]:
            return
        failpoint("stage.step")
        if state.global_step % max(1, state.max_steps // 10) == 0:
            loss = kwargs["logs"]["loss"]
            log.info("%s step %d/%d  loss %.3f", self._label, state.global_step, state.max_steps, loss)


def callbacks(label: str) -> list[TrainerCallback]:
    """What every offline trainer is watched by."""
    return [FiniteGradients(), Progress(label)]


def fit(trainer: Trainer) -> Fitted:
    """Train to the last step.

    Raises: TrainingError when a loss or a gradient is not finite; no model is written then. RecipeError,
        before the first step, for an adapter that cannot be merged.
    """
    scales_of(trainer.model)
    if not len(trainer.train_dataset):
        raise TrainingError("no example is left after 'trl.max_length'; raise it, or choose shorter rows.")
    trainer.remove_callback(PrinterCallback)
    started = time.perf_counter()
    try:
        trainer.train()
    except TrainingError as err:
        step = trainer.state.global_step + 1
        raise TrainingError(f"optimizer step {step}: {err}. No model is written.") from err
    except (ValueError, TypeError, ImportError) as err:
        raise TrainingError(
            f"TRL cannot train with the stage's 'trl' options: {err} No model is written."
        ) from err
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    if not logged:
        raise TrainingError("no optimizer step was taken; give 'trl.max_steps' or 'trl.num_train_epochs'.")
    metrics = {
        "loss_first": float(logged[0]["loss"]),
        "loss_last": float(logged[-1]["loss"]),
        "steps": float(len(logged)),
        "wall_s": time.perf_counter() - started,
    }
    every = -(-len(logged) // _POINTS)
    return Fitted(metrics, [_point(entry) for entry in logged[::every]])


def _point(entry: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in entry.items() if name not in _NOT_METRICS}
    return {"step": float(entry["step"]), **numbers}


def save(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the trained policy into `folder`, made if need be, as a weight directory without a manifest.

    An adapter is merged into the weights that are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, state = merged_model(trainer.accelerator.unwrap_model(trainer.model))
    write_weights(model, tokenizer, folder, state)
