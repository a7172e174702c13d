"""Trackers by name: TensorBoard's event files (tensorboardX), or a transformers `report_to` integration.

The transformers callbacks are driven as their Trainer drives them (train begin, log, train end), without one.
What a tracker shows is a copy: the `metrics` table is the record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rft_data.core.errors import MissingExtraError, UnknownComponentError
from rft_data.core.lookup import need, suggest
from rft_data.core.words import MetricRole
from rft_data.run.watch.samples import plain_text
from rft_data.run.watch.services import SERVICES
from rft_data.run.watch.tracker_feed import Point, Tracker

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    Began: TypeAlias = tuple[TrainingArguments, TrainerState, TrainerControl]

TENSORBOARD = "tensorboard"
BY_STEP = "by_step"
_EVAL = "eval_"
CALLBACKS = (
    "azure_ml",
    "clearml",
    "comet_ml",
    "dagshub",
    "dvclive",
    "kubeflow",
    "mlflow",
    "neptune",
    "swanlab",
    "trackio",
    "wandb",
)
"""transformers' integrations that log numbers; its `codecarbon` and `flyte` do other things."""


def make_trackers(
    names: Sequence[str], run_id: str, run_dir: Path, steps: int, axis: str = BY_STEP
) -> list[Tracker]:
    """The trackers called `names`, for a run of `steps` optimizer steps.

    Args: axis: the TensorBoard run of these steps; an offline stage counts its own.
    Raises: UnknownComponentError for a name that is none of them, MissingExtraError when a tracker's
        own package is not installed.
    """
    return [_make(name, run_id, run_dir, steps, axis) for name in dict.fromkeys(names)]


def _make(name: str, run_id: str, run_dir: Path, steps: int, axis: str) -> Tracker:
    known = (TENSORBOARD, *CALLBACKS)
    if name not in known:
        raise UnknownComponentError(
            f"tracker '{name}' is not known;{suggest(name, known)} There are: {', '.join(known)}."
        )
    if name == TENSORBOARD:
        return TensorBoard(run_dir / TENSORBOARD, axis)
    return Callback(name, run_id, run_dir, steps)


class TensorBoard:
    """Event files in TensorBoard runs: `by_step` has every number, `by_version` what explorers report.

    An offline stage is a run of its own, called as the stage.

    Look with `tensorboard --logdir RUN_DIR/tensorboard`.
    """

    name = TENSORBOARD

    def __init__(self, folder: Path, axis: str = BY_STEP) -> None:
        """Nothing is written before the first point.

        Raises: MissingExtraError without tensorboardX.
        """
        need("tensorboardX", "train", f"tracker '{TENSORBOARD}'")
        self._folder = folder
        self._axis = axis
        self._files: dict[str, EventFile] = {}

    def log(self, point: Point) -> None:
        """Write a point, tags as transformers' callback writes them, `train/reward`; samples as text."""
        scalars = {_tag(name): value for name, value in flat(point).items()}
        explored = {tag: value for tag, value in scalars.items() if tag.startswith("train/explorer")}
        by_step = self._file(self._axis, point.step)
        by_step.add_scalars(point.step, scalars)
        if point.samples:
            by_step.add_text(point.step, "completions", plain_text(point.samples))
        if explored:
            self._file("by_version", point.version).add_scalars(point.version, explored)

    def close(self) -> None:
        """Finish the files."""
        for file in self._files.values():
            file.close()

    def _file(self, axis: str, first: int) -> EventFile:
        if axis not in self._files:
            self._files[axis] = EventFile(self._folder / axis, first)
        return self._files[axis]


class EventFile:
    """One event file in a folder; a new start of a run writes a new one beside the old.

    Not tensorboardX's `SummaryWriter`: it renames tags (`8+` to `8_`) and holds events back for two minutes.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        """Create the file. TensorBoard forgets what earlier files say of steps from `first_step` on."""
        # imported here because it imports torch where that is installed
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        folder.mkdir(parents=True, exist_ok=True)
        # tensorboardX names a file by second and host, and overwrites one of the same second
        self._file = EventsWriter(str(folder / "events"), f".{time.time_ns()}.{os.getpid()}")
        self._event = event_pb2.Event
        self._write(first_step, session_log={"status": event_pb2.SessionLog.START})

    def add_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write one step's values by tag; a value too large for 32 bits becomes infinite."""
        values = [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]
        self._write(step, summary={"value": values})

    def add_text(self, step: int, tag: str, text: str) -> None:
        """Write one step's text, which is Markdown."""
        from tensorboardX.summary import text as text_summary

        self._write(step, summary=text_summary(tag, text))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _write(self, step: int, **content: object) -> None:
        self._file.write_event(self._event(wall_time=time.time(), step=step, **content))
        self._file.flush()


class Callback:
    """A transformers reporting callback without a Trainer."""

    def __init__(self, name: str, run_id: str, run_dir: Path, steps: int) -> None:
        """Make the callback; its package is imported now, its run begins with the first point.

        Raises: MissingExtraError when transformers or the tracker's package is not installed.
        """
        need("transformers", "train", f"tracker '{name}'")
        from transformers.integrations import get_reporting_integration_callbacks

        self.name = name
        self._run_id = run_id
        self._folder = run_dir / "trackers" / name
        self._service = SERVICES[name]() if name in SERVICES else None
        self._steps = steps
        self._began: Began | None = None
        [made] = get_reporting_integration_callbacks(name)
        try:
            self._callback = made()
        except (RuntimeError, ImportError) as err:
            raise MissingExtraError(
                f"tracker '{name}' cannot be used: {err} Install it, or take it out of the recipe's trackers."
            ) from err

    def log(self, point: Point) -> None:
        """Hand a point on, and its samples where the tracker shows tables."""
        args, state, control = self._began or self._begin()
        state.global_step = point.step
        if self._service is not None and point.samples:
            self._service.show(point.samples, point.step)
        self._callback.on_log(args, state, control, model=None, logs=flat(point))
        self._callback.on_step_end(args, state, control)

    def close(self) -> None:
        """End the tracker's run, if it began."""
        if self._began is None:
            return
        self._callback.on_train_end(*self._began, model=None)
        if self._service is not None:
            self._service.finish()

    def _begin(self) -> Began:
        """Start the tracker's run, in the thread that goes on with it: several keep it per thread."""
        from transformers import TrainerControl, TrainerState

        state = TrainerState(max_steps=self._steps)
        name = self._run_id if self._service is None else self._service.begin(self._run_id, self._folder)
        self._began = (_arguments(str(self._folder), name), state, TrainerControl())
        self._callback.on_init_end(*self._began)
        self._callback.on_train_begin(*self._began, model=None, processing_class=None)
        return self._began


def _arguments(output: str, run_id: str) -> TrainingArguments:
    """The arguments and state that callbacks read beside the numbers.

    Arguments as they come would set up a device and so reset accelerate's state, which a trainer in this
    process is using; and callbacks would show their defaults as the settings of the run.
    """
    import torch
    from transformers import TrainingArguments

    class Arguments(TrainingArguments):  # type: ignore[misc]
        _setup_devices = torch.device("cpu")
        _n_gpu = 0
        distributed_state = None

        def to_dict(self) -> dict[str, object]:
            return {"output_dir": self.output_dir, "run_name": self.run_name}

    return Arguments(output_dir=output, run_name=run_id, report_to="none", use_cpu=True)


def flat(point: Point) -> dict[str, float]:
    """A point's numbers under the names that trackers get.

    The trainer's by key, as TRL names them; held-out figures as `eval_KEY`, as TRL's evaluations; those of
    other roles as `role/key`. The other axes, policy version and elapsed seconds, are the loop's. A name
    under which there are others ends with `/all`: MLflow's files have a folder there.
    """
    found = {
        _name(role, key): value for role, numbers in point.numbers.items() for key, value in numbers.items()
    }
    above = {name[:place] for name in found for place, sign in enumerate(name) if sign == "/"}
    return {f"{name}/all" if name in above else name: value for name, value in found.items()}


def _name(role: str, key: str) -> str:
    if role == MetricRole.RUN:
        return f"{_EVAL}{key.removeprefix('heldout/')}"
    return key if role == MetricRole.TRAINER else f"{role}/{key}"


def _tag(name: str) -> str:
    """A name as transformers' own callbacks show it."""
    return f"eval/{name.removeprefix(_EVAL)}" if name.startswith(_EVAL) else f"train/{name}"
