"""Whether a run is at work on a buffer of an object store, which has no lock: who opens it takes it over."""

from __future__ import annotations

import json

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, MissingFileError
from rft_data.core.scratch import on_store
from rft_data.run.mirror import run_folder
from rft_data.run.record import standing

_STARTS = 20
"""Newest starts of runs among which one that is at work is looked for."""


def check_free(uri: str) -> None:
    """Refuse to write to a buffer whose run is at work: opening it for writing would end that run.

    A folder has a lock, which says the same; a run with a folder of its own on another machine is not seen.
    Raises: BusyError.
    """
    if not on_store(uri) or uri.startswith("hub://"):
        return
    try:
        with Buffer(uri, read_only=True) as buffer:
            recipes = buffer.tail("runs", _STARTS, ["recipe"]).column("recipe").to_pylist()
    except MissingFileError:
        return
    places = (json.loads(recipe).get("run_dir") for recipe in reversed(recipes))
    for run_dir in dict.fromkeys(place for place in places if isinstance(place, str)):
        try:
            found = standing(run_folder(run_dir))
        except MissingFileError:
            continue
        if found.alive and found.record is not None:
            raise BusyError(
                f"the run in {run_dir} is at work on buffer {uri} (process {found.record.pid} on "
                f"{found.record.host}), and writing to it from here would end that run. Write through its "
                f"hub, if it has one, or stop it first: rft stop {run_dir}"
            )
