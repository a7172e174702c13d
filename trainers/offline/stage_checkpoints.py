"""Checkpoints within an offline stage, beside its folder: one that ended early goes on from the newest."""

from __future__ import annotations

import logging
import shutil
import time
from hashlib import blake2b
from pathlib import Path

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rft_data.weights import checkpoint
from trainers.offline.steps_taken import asked_to_stop

log = logging.getLogger(__name__)

EVERY_S = 300.0
"""Seconds of training between two checkpoints, at least; short stages write none."""
_COST = 20
"""Training between two checkpoints takes at least so many times as long as writing one took."""
_KEPT = 1
_MOVING_REFERENCE = "sync_ref_model"
"""The option with which a loss depends on weights that are in no checkpoint."""


class StageCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Writes them through the trainer, and finds the one to go on from."""

    def __init__(self, trainer: Trainer) -> None:
        """Nothing is written before a checkpoint is due."""
        output = Path(trainer.args.output_dir)
        self.folder = output.with_name(f"{output.name}.checkpoints")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._data = _digest(trainer)
        self._possible = not getattr(trainer.args, _MOVING_REFERENCE, False)
        self._began = time.monotonic()
        self._wait_s = EVERY_S
        self.stopped = False
        """Whether the training ended before its last step, as asked, with a checkpoint."""
        trainer.args.output_dir = str(self.folder)
        trainer.add_callback(self)

    def newest(self) -> str | None:
        """The newest complete checkpoint of a training on the same examples."""
        found = checkpoint.newest(self.folder)
        if found is None:
            return None
        if found.state["data"] != self._data:
            log.warning("%s is of other examples than there are now; the stage starts over", found.directory)
            self.remove()
            return None
        log.info("the stage goes on from its checkpoint of step %d", found.step)
        return str(found.directory)

    def remove(self) -> None:
        """The stage is done: none is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Ask for a checkpoint if one is due, or the stage is to stop; the last step needs none."""
        if not self._possible or state.global_step >= state.max_steps:
            return
        if asked_to_stop(self.folder):
            self.stopped = control.should_save = control.should_training_stop = True
        elif time.monotonic() - self._began >= self._wait_s:
            control.should_save = True
            self._began = time.monotonic()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Seal the checkpoint that the trainer has written."""
        folder = self.folder / f"checkpoint-{state.global_step}"
        checkpoint.seal(folder, state.global_step, {"data": self._data})
        checkpoint.prune(self.folder, _KEPT)
        self._wait_s = max(EVERY_S, _COST * (time.monotonic() - self._began))
        self._began = time.monotonic()


def _digest(trainer: Trainer) -> str:
    """Digest of the examples, in order."""
    hashed = blake2b(digest_size=16)
    for batch in trainer.train_dataset.with_format("arrow").iter(1000):
        for part in batch.combine_chunks().to_batches():
            hashed.update(part.serialize())
    return hashed.hexdigest()
