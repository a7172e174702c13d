"""A run as other processes see it from its folder: its process, its state, and how to ask it to stop.

Nothing here needs the run's process. `control.py` is the side of that process.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rft_data.core.errors import MissingFileError, StalledError
from rft_data.core.files import MANIFEST_FILE, write_text
from rft_data.core.lock import holder
from rft_data.core.words import RunState, StopRequest, member

RECORD_FILE, LOCK_FILE, STOP_FILE, LOG_FILE = "run.pid", "run.lock", "run.stop", "log.txt"
HUB_FILE = "hub.json"
RECIPE_FILE = "recipe.json"
"""The resolved recipe; a folder with it is a run's."""
SHOWN = (RECORD_FILE, RECIPE_FILE, f"checkpoints/*/{MANIFEST_FILE}")
"""The files that this module and `status.py` read."""
COPY_FILE = ".copy-of"
"""File of a folder that is a copy of a part of a run elsewhere; it holds the run's URL, or its hub's."""
SILENT_S = 30.0
"""A run writes its record every second; one that wrote none for so many seconds is `silent`."""
STORED_SILENT_S = 90.0
"""Seconds until `silent` for a run that stores its record on an object store every 15 s."""
_ANSWER_S = 15.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of `run.pid`, which the run writes itself. Times are Unix seconds."""

    pid: int
    host: str
    attempt: int
    """How often the run had been started before."""
    started_at: float
    state: RunState
    beat_at: float
    """Time of the last record."""
    phase: str = ""
    """Present activity, in words."""
    phase_at: float = 0.0
    """Time at which that began."""
    done: int | None = None
    """Steps or groups done so far; None where they are not counted."""
    total: int | None = None
    """The same, all of them."""
    why: str = ""
    """The reason that it stopped or failed, or empty."""
    exit_code: int | None = None
    """Exit code of its process; None while it runs."""
    sandbox: str = ""
    """The sandbox of programs that the model wrote: its kind, the recipe's setting, and why others were
    rejected. Empty where the run runs no programs."""
    heard: Mapping[str, float] = field(default_factory=dict)
    """Time at which each role last answered or was at work."""

    def as_json(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a run's process now."""

    state: RunState
    why: str
    record: RunRecord | None

    @property
    def alive(self) -> bool:
        """Whether a process holds the run."""
        return self.state in (RunState.RUNNING, RunState.STOPPING, RunState.SILENT)


def read_record(run_dir: Path) -> RunRecord | None:
    """The run's last record; None if it never wrote one, or it cannot be read."""
    try:
        record = RunRecord(**json.loads((run_dir / RECORD_FILE).read_text()))
        return replace(record, state=member(RunState, record.state))
    except (OSError, ValueError, TypeError):
        return None


def write_record(run_dir: Path, record: RunRecord, *, durable: bool) -> None:
    """Replace `run.pid` in one step; `durable` also flushes it to the disk."""
    path, text = run_dir / RECORD_FILE, json.dumps(record.as_json())
    if durable:
        write_text(path, text)
        return
    draft = path.with_name(f".{path.name}.beat")
    draft.write_text(text)
    draft.rename(path)


def held(run_dir: Path) -> bool:
    """Whether a process holds the run's lock; the lock goes with the process, however it dies."""
    return holder(run_dir / LOCK_FILE) != ""


def standing(run_dir: Path) -> Standing:
    """The run's state as far as its folder shows it.

    Raises: MissingFileError if the folder holds no run.
    """
    copied = (run_dir / COPY_FILE).is_file()
    living = not copied and held(run_dir)  # looked at first: a process writes its last record, then lets go
    record = read_record(run_dir)
    if record is None and not (run_dir / RECIPE_FILE).is_file():
        raise MissingFileError(
            f"{run_dir} holds no run (neither {RECORD_FILE} nor {RECIPE_FILE} in it); "
            "name a folder under 'runs'."
        )
    if record is None:
        return Standing(RunState.RUNNING if living else RunState.UNKNOWN, "", None)
    if record.state not in (RunState.RUNNING, RunState.STOPPING):
        return Standing(record.state, record.why, record)
    living = living or (not copied and held(run_dir))  # it may have begun since
    since = max(0.0, time.time() - record.beat_at)
    if (living and since < SILENT_S) or (copied and since < STORED_SILENT_S):
        return Standing(record.state, record.why, record)
    who = f"process {record.pid} on {record.host}"
    if living:
        return Standing(RunState.SILENT, f"{who} holds the run but wrote nothing for {since:.0f} s", record)
    return Standing(
        RunState.DIED, f"{who} ended without a word {since:.0f} s ago (killed, or out of memory)", record
    )


def ask_to_stop(run_dir: Path, *, now: bool) -> str:
    """Ask the run's process to drain and checkpoint, or with `now` to end at once; returns what came of it.

    Raises: MissingFileError if the folder holds no run; StalledError if the process does not answer.
    """
    before = standing(run_dir)
    if not before.alive:
        return f"nothing to stop: the run is {before.state}" + (f" ({before.why})" if before.why else "")
    write_text(run_dir / STOP_FILE, StopRequest.NOW if now else StopRequest.DRAIN)
    end = time.monotonic() + _ANSWER_S
    while time.monotonic() < end:
        after = standing(run_dir)
        if not after.alive:
            return f"the run is {after.state}" + (f" ({after.why})" if after.why else "")
        if after.state == RunState.STOPPING and not now:
            return "the run finishes what is under way, writes a checkpoint and ends"
        time.sleep(0.1)
    pid = before.record.pid if before.record else math.nan
    raise StalledError(
        f"the run in {run_dir} was asked to stop, but process {pid} did not answer within {_ANSWER_S:g} s; "
        f"the request stays in {STOP_FILE}. Killing that process is safe: what was acknowledged is stored."
    )
