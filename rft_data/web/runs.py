"""The page of a run: its state, its numbers as pictures, and where its groups went."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd

from rft_data.buffer import Buffer
from rft_data.buffer.parts import Part
from rft_data.core.errors import MissingFileError, RecipeError, RftError, UnknownComponentError
from rft_data.core.filters import Compare
from rft_data.core.lookup import suggest
from rft_data.core.words import MetricRole
from rft_data.reading.patience import patiently
from rft_data.reading.run_metrics import run_metrics
from rft_data.run.record import RECIPE_FILE
from rft_data.run.status import RunStatus, run_status, stored_run_id
from rft_data.web.chart import Chart, chart
from rft_data.web.part_cache import Kept
from rft_data.web.subjects import Subject, Subjects

FIRST = (
    "trainer/reward",
    "trainer/reward_std",
    "trainer/loss",
    "trainer/kl",
    "trainer/entropy",
    "trainer/grad_norm",
    "trainer/completions/mean_length",
    "loop/rollout_reward",
    "loop/elapsed_s",
    "run/heldout/pass_rate",
    "run/heldout/reward",
    "run/heldout/accuracy",
)
"""Numbers that are shown first, where a run has them."""
_OF_A_STAGE = ("loss", "grad_norm", "mean_token_accuracy", "rewards/accuracies")
"""Those of an offline stage, over its own steps."""


GENERATED = "generated_tokens_per_s"
_SIZE_S = 60
"""So long the size of a folder counts as known."""
_FRAMES: Kept[pd.DataFrame | None] = Kept(16 << 20, lambda frame: 0 if frame is None else frame.size * 8)
"""Numbers of runs, by the parts of the table that they are in."""
_OUTCOMES: Kept[Counter[str]] = Kept(1 << 20, lambda found: 100 * len(found))
"""Groups of runs by outcome, by part of the table."""


@dataclass(frozen=True, slots=True)
class Line:
    """A subject in the list of subjects."""

    subject: Subject
    status: RunStatus | None
    """None: a buffer alone."""
    reward: Chart | None
    rows: Mapping[str, int]
    wrong: str = ""
    """Reason why nothing can be said of it."""

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens sampled in a second over the last step; None where none are recorded."""
        progress = None if self.status is None else self.status.progress
        return None if progress is None else progress.numbers.get(MetricRole.LOOP, {}).get(GENERATED)

    @property
    def disk(self) -> int | None:
        """Bytes of its folder, counted at most once a minute; None where it is no folder."""
        path = Path(self.subject.where)
        return _size(path, int(time.monotonic() // _SIZE_S)) if path.is_dir() else None


def lines(subjects: Subjects) -> list[Line]:
    """The list of subjects; one that cannot be read says why and does not hide the others."""
    found = []
    for subject in subjects:
        try:
            found.append(patiently(partial(line, subjects, subject)))
        except (RftError, OSError, RuntimeError, ValueError) as err:
            found.append(Line(subject, None, None, {}, str(err)))
    return found


def line(subjects: Subjects, subject: Subject) -> Line:
    """One line of the list of runs and buffers."""
    if subject.run_dir is None:
        counts = subjects.buffer(subject.key).counts()
        return Line(subject, None, None, {name: count for name, count in counts.items() if count})
    status = run_status(subject.run_dir, buffer=opened(subjects, subject.key))
    rewards = status.progress.reward if status.progress is not None else ()
    return Line(subject, status, chart("reward", range(len(rewards)), rewards), status.rows)


def opened(subjects: Subjects, key: str) -> Buffer | None:
    """The subject's buffer; None while its run has none."""
    try:
        return subjects.buffer(key)
    except MissingFileError:
        return None


def metrics(buffer: Buffer, run_id: str, names: Sequence[str]) -> pd.DataFrame | None:
    """Some of a run's numbers, one row per step; None where it has none. The frame is shared: read only."""
    key = (run_id, tuple(names), *(part.name for part in buffer.parts("metrics")))
    return _FRAMES.of(key, lambda: _read_metrics(buffer, run_id, names))


def _read_metrics(buffer: Buffer, run_id: str, names: Sequence[str]) -> pd.DataFrame | None:
    try:
        return run_metrics(buffer, run_id, names)
    except UnknownComponentError:
        return None


def first_names(folder: Path) -> list[str]:
    """The numbers of a run that are looked at first: those of its offline stages, then those of all runs.

    A run that is only beginning may not have written its recipe whole.
    """
    try:
        stages = json.loads((folder / RECIPE_FILE).read_text()).get("stages") or []
    except ValueError:
        return list(FIRST)
    named = [f"{number}-{stage['algorithm']}" for number, stage in enumerate(stages)]
    return [*(f"{MetricRole.TRAINER}/{stage}/{key}" for stage in named for key in _OF_A_STAGE), *FIRST]


def first_charts(frame: pd.DataFrame, names: Sequence[str]) -> list[Chart]:
    """Pictures of these numbers, where the run has them."""
    found = [series(frame, name) for name in names if name in frame.columns]
    return [one for one in found if one is not None]


def last_numbers(status: RunStatus) -> list[str]:
    """The names of all numbers of the newest step, as `role/key`."""
    numbers = {} if status.progress is None else status.progress.numbers
    return sorted(f"{role}/{key}" for role, found in numbers.items() for key in found)


def one_number(subjects: Subjects, key: str, name: str) -> pd.DataFrame:
    """One of a run's numbers by step. Raises: UnknownComponentError when the run has no such number."""
    buffer, folder = subjects.buffer(key), run_folder(subjects, key)
    frame = metrics(buffer, stored_run_id(folder), [name]) if "/" in name else None
    if frame is None or name not in frame.columns:
        known = last_numbers(run_status(folder, buffer=buffer))
        raise UnknownComponentError(f"this run records no '{name}';{suggest(name, known)}")
    return frame


def run_folder(subjects: Subjects, key: str) -> Path:
    """The folder of a subject that is a run. Raises: RecipeError for a buffer alone."""
    folder = subjects[key].run_dir
    if folder is None:
        raise RecipeError(f"'{key}' is a buffer, and this belongs to a run; open the run's folder.")
    return folder


def series(
    frame: pd.DataFrame,
    name: str,
    *,
    smoothing: float = 0.0,
    log: bool = False,
    first: int | None = None,
    last: int | None = None,
) -> Chart | None:
    """The picture of one of a run's numbers; None where no step has one that can be drawn.

    Args: first, last: the steps that are shown; None: from the first, up to the last.
    """
    found = pairs(frame, name, first, last)
    steps, values = [step for step, _ in found], [value for _, value in found]
    return chart(name, steps, values, smoothing=smoothing, log=log)


def pairs(
    frame: pd.DataFrame, name: str, first: int | None = None, last: int | None = None
) -> list[tuple[int, float]]:
    """Step and value of one of a run's numbers, in the order of the steps."""
    column = frame[name].dropna().loc[first:last]
    return [(int(step), float(value)) for step, value in column.items()]


def outcomes(buffer: Buffer, run_id: str) -> dict[str, int]:
    """Groups of a run by what became of them; those that an operator dropped by its name."""
    found: Counter[str] = Counter()
    for part in buffer.parts("groups"):
        found.update(_OUTCOMES.of((part.name, run_id), partial(_outcomes_in, part, run_id)))
    return dict(found.most_common())


def _outcomes_in(part: Part, run_id: str) -> Counter[str]:
    groups = part.read(["outcome", "dropped_by"], Compare("run_id", "eq", run_id))
    found: Counter[str] = Counter()
    for one in groups.group_by(["outcome", "dropped_by"]).aggregate([([], "count_all")]).to_pylist():
        found[f"dropped by {one['dropped_by']}" if one["dropped_by"] else one["outcome"]] += one["count_all"]
    return found


@lru_cache(maxsize=256)
def _size(folder: Path, minute: int) -> int:
    """Bytes of the files in a folder; those that go meanwhile count as nothing.

    Args: minute: makes what was counted before it count no longer.
    """
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(path, name)).st_size
    return total
