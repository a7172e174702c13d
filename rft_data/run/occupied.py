"""Whether a run on an object store is at work: there is no lock there, and who opens it takes it over."""

from __future__ import annotations

import json
import logging
from contextlib import suppress

from rft_data.buffer.store import Store
from rft_data.core.errors import BusyError, MissingFileError, RftError
from rft_data.core.scratch import check_has_files, on_store, working_folder
from rft_data.run.mirror import run_folder
from rft_data.run.record import STORED_SILENT_S, RunRecord, read_record, standing

log = logging.getLogger(__name__)

_STARTS = 20
"""Newest starts of runs among which one that is at work is looked for."""


def check_ended(run_dir: str) -> None:
    """Refuse to continue a run that is at work on another machine.

    A start of this machine is known to have ended: its locks are asked elsewhere.
    Raises: BusyError.
    """
    record = _at_work(run_dir)
    if record is None or _is_of_this_machine(run_dir, record):
        return
    raise BusyError(
        f"the run at {run_dir} is at work: process {record.pid} on {record.host} wrote its record less "
        f"than {STORED_SILENT_S:g} s ago. Stop it with: rft stop {run_dir}. If it was killed, wait until its "
        f"record is that old, or take it over now: rft resume {run_dir} --take-over (a process that still "
        "runs then stores nothing more, and ends with exit code 4)."
    )


def check_free(uri: str) -> None:
    """Refuse to write to a buffer whose run is at work: opening it for writing would end that run.

    A folder has a lock, which says the same; a run with a folder of its own on another machine is not seen.
    Raises: BusyError.
    """
    if not on_store(uri) or uri.startswith("hub://"):
        return
    with suppress(MissingFileError):
        _check_none_at_work(uri, _run_dirs(uri))


def check_repairable(uri: str) -> None:
    """The same before a repair. Where the starts of runs are damaged, a run above the buffer is looked for.

    Raises: BusyError; MissingFileError if there is no buffer; RecipeError for the address of a hub.
    """
    check_has_files(uri)
    try:
        run_dirs = _run_dirs(uri)
    except MissingFileError:
        raise
    except (RftError, OSError, RuntimeError, ValueError) as err:  # Lance's, of damage
        above = uri.rstrip("/").rpartition("/")[0]
        log.warning("which runs use buffer %s cannot be read; only %s is looked at: %s", uri, above, err)
        run_dirs = [above]
    _check_none_at_work(uri, run_dirs)


def _check_none_at_work(uri: str, run_dirs: list[str]) -> None:
    for run_dir in run_dirs:
        if (record := _at_work(run_dir)) is not None:
            raise BusyError(
                f"the run in {run_dir} is at work on buffer {uri} (process {record.pid} on "
                f"{record.host}), and writing to it from here would end that run. Write through its "
                f"hub, if it has one, or stop it first: rft stop {run_dir}"
            )


def _run_dirs(uri: str) -> list[str]:
    """Of the newest runs on a buffer, also of one in which other tables are damaged. Raises: RftError."""
    store = Store(uri, read_only=True)
    try:
        recipes = store.rows("runs").tail(_STARTS, ["recipe"]).column("recipe").to_pylist()
    finally:
        store.close()
    places = (json.loads(recipe).get("run_dir") for recipe in reversed(recipes))
    return list(dict.fromkeys(place for place in places if isinstance(place, str)))


def _at_work(run_dir: str) -> RunRecord | None:
    """The record of a run that is at work; None if it is not, or there is none."""
    try:
        found = standing(run_folder(run_dir))
    except MissingFileError:
        return None
    return found.record if found.alive else None


def _is_of_this_machine(run_dir: str, record: RunRecord) -> bool:
    """Whether a start wrote its record in this machine's folder too."""
    mine = read_record(working_folder(run_dir))
    return mine is not None and _start(mine) == _start(record)


def _start(record: RunRecord) -> tuple[int, str, float]:
    return record.pid, record.host, record.started_at
