"""The present work of a run, read from its folder and its buffer, whether its process is alive or not.

It may be asked every second: it reads the last record of the metrics and one narrow series, and no rows.
`rft buffer books` counts the rows themselves.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError
from rft_data.core.facts import residual
from rft_data.core.files import MANIFEST_FILE
from rft_data.core.filters import And, Compare, In
from rft_data.core.words import ADMITTED, GroupState, MetricRole
from rft_data.run.record import COPY_FILE, RECIPE_FILE, Standing, standing
from rft_data.run.seen_by_hub import shown_buffer
from rft_data.run.watch.metrics_log import ELAPSED_S, VERSION

_LAST_ROWS = 4000
"""Numbers of the newest steps that are read; a step has about a hundred."""
_TREND = 200
"""Steps of the reward that are kept."""
_OFFLINE_STAGE = re.compile(r"^\d+-[a-z_]+/")
"""Begin of the names of an offline stage's numbers."""
_RECENT = 20
"""Steps that rates are taken over."""


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One role at work."""

    name: str
    bubble: float | None
    """Idle / (idle + busy) seconds over the last step; None if it is not recorded."""
    heard_s: float | None
    """Seconds since it was last at work; None if that is not recorded."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Newest figures of a run in the metrics table."""

    step: int
    """Optimizer steps recorded since the start of the run."""
    version: int | None
    """Newest policy version."""
    last_step_s: float | None
    """Seconds since the last step was recorded."""
    step_s: float | None
    """Wall seconds a step took, over the last ones of the present start; None before two steps."""
    reward: tuple[float, ...]
    """Mean reward of the last steps, oldest first."""
    numbers: Mapping[str, Mapping[str, float]]
    """Everything recorded for the last step, by role."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run, now."""

    run_dir: str
    run_id: str
    standing: Standing
    steps: int | None
    """Optimizer steps the recipe asks for; None where it asks for none."""
    groups: tuple[int, int] | None
    """Groups played and groups asked for, in a run that only explores."""
    progress: Progress | None
    """None before the first step."""
    roles: tuple[RoleStatus, ...]
    rows: Mapping[str, int]
    """Rows per table; empty while there is no buffer."""
    checkpoint: tuple[int, float] | None
    """Step of the newest checkpoint that was completed, and seconds since."""
    max_staleness: int | None
    """Optimizer steps that weights may be behind when their rollouts are trained on; None: no bound."""
    disk_free: int
    """Bytes left where the run's folder is."""
    disk_total: int

    @property
    def books(self) -> Mapping[str, int]:
        """Groups by state after the last step; empty if the sampler reports none."""
        found = {} if self.progress is None else self.progress.numbers.get(MetricRole.SAMPLER, {})
        return {key: int(value) for key, value in found.items() if key in _STATES}

    @property
    def residual(self) -> int | None:
        """Groups in no state (0 in a sound run); None if the sampler reports no states."""
        return residual(self.books) if ADMITTED in self.books else None

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the present pace; None when the run is not at work."""
        progress = self.progress
        if not self.standing.alive or progress is None or progress.step_s is None or self.steps is None:
            return None
        return max(0, self.steps - progress.step) * progress.step_s

    def as_json(self) -> dict[str, object]:
        """Plain values, for JSON; what is not finite is null."""
        found = {**asdict(self), "books": self.books, "residual": self.residual, "eta_s": self.eta_s}
        return {key: _finite(value) for key, value in found.items()}


_STATES = (ADMITTED, *GroupState)


def run_status(run_dir: Path, *, buffer: Buffer | None = None) -> RunStatus:
    """The present status of a run.

    Args: buffer: the run's buffer, open for reading, if it is asked for again and again.
    Raises: MissingFileError if the folder holds no run.
    """
    now = standing(run_dir)
    recipe = stored_recipe(run_dir)
    counted = stored_run_id(run_dir)
    opened = buffer if buffer is not None else open_buffer(run_dir)
    try:
        progress = None if opened is None else _progress(opened, counted, online=_steps(recipe) is not None)
        groups = _groups(opened, counted, recipe.get("groups"))
        rows = {} if opened is None else opened.counts()
    finally:
        if opened is not None and buffer is None:
            opened.close()
    disk, copied = shutil.disk_usage(run_dir), (run_dir / COPY_FILE).is_file()
    return RunStatus(
        run_dir=str(recipe.get("run_dir", "")) if copied else str(run_dir),
        run_id=str(recipe.get("name", run_dir.name)),
        standing=now,
        steps=_steps(recipe),
        groups=groups,
        progress=progress,
        roles=_roles(now, progress),
        rows={name: count for name, count in rows.items() if count},
        checkpoint=_checkpoint(run_dir / "checkpoints"),
        max_staleness=_max_staleness(recipe),
        disk_free=disk.free,
        disk_total=disk.total,
    )


def stored_run_id(run_dir: Path) -> str:
    """The run id under which a run's rows are stored: one that only trains continues another one's."""
    recipe = stored_recipe(run_dir)
    return str(recipe.get("explored_by", recipe.get("name", run_dir.name)))


def open_buffer(run_dir: Path) -> Buffer | None:
    """The run's buffer, for reading, or its hub; None while it has none."""
    copied = run_dir / COPY_FILE
    if copied.is_file() and (address := copied.read_text()).startswith("hub://"):
        return cast("Buffer", shown_buffer(address))  # it has the methods that are called
    uri = str(stored_recipe(run_dir).get("buffer", {}).get("uri", run_dir / "buffer"))
    inside = run_dir / "buffer"
    if "://" not in uri and not Path(uri).is_dir() and inside.is_dir():
        uri = str(inside)  # the run was started from another folder
    if uri.startswith("hub://"):
        return None  # another run's, on another machine
    try:
        return Buffer(uri, read_only=True)
    except MissingFileError:
        return None


def stored_recipe(run_dir: Path) -> dict[str, Any]:
    """The recipe as stored, not checked: it may be one of another release."""
    try:
        tree = json.loads((run_dir / RECIPE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _steps(recipe: Mapping[str, Any]) -> int | None:
    stages = recipe.get("stages") or [{}]
    steps = stages[-1].get("steps") if isinstance(stages[-1], dict) else None
    return steps if isinstance(steps, int) else None


def _max_staleness(recipe: Mapping[str, Any]) -> int | None:
    """The staleness bound of a run whose stages train on what is sampled meanwhile."""
    sync = recipe.get("sync")
    bound = sync.get("max_staleness") if isinstance(sync, dict) else None
    return bound if isinstance(bound, int) else None


def _groups(buffer: Buffer | None, run_id: str, wanted: object) -> tuple[int, int] | None:
    if not isinstance(wanted, int):
        return None
    where = Compare("run_id", "eq", run_id)
    return 0 if buffer is None else buffer.read("groups", ["run_id"], where).num_rows, wanted


def _progress(buffer: Buffer, run_id: str, *, online: bool) -> Progress | None:
    """Args: online: whether the run's steps are those of its last stage, and offline stages' do not count."""
    names = ["run_id", "role", "step", "key", "value", "created_at"]
    last = buffer.tail("metrics", _LAST_ROWS, names)
    last = last.filter(pc.equal(last["run_id"], run_id))
    if not last.num_rows:  # another run has been writing since
        last = buffer.read("metrics", names, Compare("run_id", "eq", run_id))
    if online:
        taken = pc.unique(last.filter(pc.equal(last["role"], MetricRole.LOOP.value))["step"])
        own = pc.invert(pc.match_substring_regex(last["key"], _OFFLINE_STAGE.pattern))
        last = last.filter(pc.and_(pc.is_in(last["step"], taken), own))
    if not last.num_rows:
        return None
    step, at = last["step"][-1].as_py(), last["created_at"][-1].as_py()
    numbers: dict[str, dict[str, float]] = {}
    for row in last.filter(pc.equal(last["step"], step)).to_pylist():
        numbers.setdefault(row["role"], {})[row["key"]] = row["value"]
    version = numbers.get(MetricRole.LOOP, {}).get(
        VERSION, numbers.get(MetricRole.TRAINER, {}).get("version")
    )
    series = _series(buffer, run_id, step)
    return Progress(
        step=step + 1,
        version=None if version is None else int(version),
        last_step_s=max(0.0, time.time() - at.timestamp()),
        step_s=_pace(series.get(ELAPSED_S, {})),
        reward=tuple(series.get("reward", {}).values())[-_TREND:],
        numbers=numbers,
    )


def _series(buffer: Buffer, run_id: str, last: int) -> dict[str, dict[int, float]]:
    """Reward and clock by step, in order of steps; of a step taken again after a resume, the newest."""
    where = And(
        (
            Compare("run_id", "eq", run_id),
            Compare("step", "gt", last - _TREND),
            Compare("step", "le", last),
            In("key", ("reward", ELAPSED_S)),
            In("role", (MetricRole.TRAINER, MetricRole.LOOP)),
        )
    )
    found: dict[str, dict[int, float]] = {}
    for row in buffer.read("metrics", ["step", "key", "value"], where).to_pylist():
        found.setdefault(row["key"], {})[row["step"]] = row["value"]
    return {key: dict(sorted(values.items())) for key, values in found.items()}


def _pace(clock: Mapping[int, float]) -> float | None:
    """Mean seconds of a step over the last ones."""
    steps = list(clock)[-_RECENT:]
    if len(steps) < 2 or clock[steps[-1]] <= clock[steps[0]]:
        return None
    return (clock[steps[-1]] - clock[steps[0]]) / (steps[-1] - steps[0])


def _roles(now: Standing, progress: Progress | None) -> tuple[RoleStatus, ...]:
    heard = {} if now.record is None else now.record.heard
    numbers = {} if progress is None else progress.numbers
    names = dict.fromkeys([*heard, *(role for role, found in numbers.items() if "bubble" in found)])
    return tuple(
        RoleStatus(
            name,
            numbers.get(name, {}).get("bubble"),
            max(0.0, time.time() - heard[name]) if name in heard else None,
        )
        for name in names
    )


def _checkpoint(folder: Path) -> tuple[int, float] | None:
    """The newest with a manifest; whether its files are whole is for `rft resume` to check."""
    found = {
        int(number): path
        for path in folder.glob(f"checkpoint-*/{MANIFEST_FILE}")
        if (number := path.parent.name.rpartition("-")[2]).isdecimal()
    }
    if not found:
        return None
    step = max(found)
    try:
        return step, max(0.0, time.time() - found[step].stat().st_mtime)
    except FileNotFoundError:  # pruned since
        return None


def _finite(value: object) -> object:
    """The value, with None for numbers that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
