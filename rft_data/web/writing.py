"""Writes to a buffer for the page: through the hub of its run, else as its owner for a moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TypeVar

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError
from rft_data.core.rows import Feedback, PreferencePair
from rft_data.core.scratch import on_hub, working_folder
from rft_data.core.words import HubRole
from rft_data.exchange.annotate import store_corrections
from rft_data.placement.hub.client import HubClient
from rft_data.run.hub_file import offered_hub
from rft_data.run.occupied import check_free
from rft_data.run.seen_by_hub import hub_writer

PATIENCE_S = 3.0
"""How long to wait for a buffer that another process owns: a page has it for a moment, a run for long."""
_PAUSE_S = 0.02
_DEADLINE_S = 20.0
"""For an answer of a hub."""
_STARTS = 20
"""Newest starts of runs among which the one that has the buffer is looked for."""
_one_at_a_time = Lock()
"""Within this process; other pages are waited for."""
Result = TypeVar("Result")


class Writer:
    """The writes of a page to a buffer."""

    def __init__(self, store: Buffer | HubClient) -> None:
        self.store = store

    def say(self, feedback: Sequence[Feedback]) -> int:
        """Store feedback; returns how many rows were new."""
        if isinstance(self.store, HubClient):
            return self.store.add_feedback(feedback, deadline_s=_DEADLINE_S)
        return self.store.add_feedback(feedback)

    def prefer(self, pairs: Sequence[PreferencePair]) -> None:
        """Store pairs; of choices through a hub they are made when a stage is trained (`store_said`)."""
        if isinstance(self.store, Buffer):
            self.store.add_preferences(pairs)

    def correct(self) -> None:
        """Make rows and pairs of corrections; the same holds for a hub."""
        if isinstance(self.store, Buffer):
            store_corrections(self.store)


def write(
    buffer: Buffer, run_dir: Path | None, act: Callable[[Writer], Result], role: HubRole = HubRole.FEEDBACK
) -> Result:
    """Let `act` write to the buffer that `buffer` reads; one at a time.

    Args: run_dir: of the run it belongs to, where that is known. role: at a hub, FEEDBACK or CURATOR.
    Raises: BusyError when a process has the buffer that offers no hub here; what `act` raises.
    """
    if on_hub(buffer.location):
        with hub_writer(buffer.location, role) as client:
            return act(Writer(client))
    with _one_at_a_time:
        end = time.monotonic() + PATIENCE_S
        while True:
            hubs = (offered_hub(one, buffer.location, role) for one in _run_folders(buffer, run_dir))
            hub = next((found for found in hubs if found), None)
            if hub is not None:
                with HubClient(hub.address, hub.token) as client:
                    return act(Writer(client))
            check_free(buffer.location)
            try:
                owned = Buffer(buffer.location)
            except BusyError:
                if time.monotonic() > end:
                    raise
                time.sleep(_PAUSE_S)
                continue
            with owned:
                return act(Writer(owned))


def _run_folders(buffer: Buffer, run_dir: Path | None) -> Iterator[Path]:
    """Folders of the runs that may have the buffer now."""
    if run_dir is not None:
        yield run_dir
    for row in reversed(buffer.tail("runs", _STARTS, ["recipe"]).to_pylist()):
        folder = json.loads(row["recipe"]).get("run_dir")
        if isinstance(folder, str):
            yield working_folder(folder)
