"""Tasks that people retired, kept out of a run's play: when it begins, and at each of its checkpoints.

In between a word changes nothing, so a resumed run draws the tasks that it would have drawn.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from rft_data.core.filters import Compare
from rft_data.core.reader import BufferReader
from rft_data.exchange.standing import retired_tasks
from rft_data.run.folder import Run
from rft_data.run.parts import RlParts
from rft_data.tasks.curator import TaskCurator
from rft_data.tasks.selectors.interfaces import OpenSelector

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetiredByPeople:
    """Tells a selector what people said of its tasks."""

    buffer: BufferReader
    selector: OpenSelector
    curator: TaskCurator | None
    """Tasks that it retired stay retired, whatever people say."""
    least: int
    """Tasks that a step needs: where fewer would be left, people's words change nothing."""

    def apply(self, before: datetime | None = None) -> None:
        """Take tasks out of play, or back. Args: before: only what was said earlier counts."""
        said = retired_tasks(self.buffer, before)
        kept_out = set() if self.curator is None else self.curator.retired
        gone = [key for key, retired in said.items() if retired and key not in kept_out]
        self.selector.revive([key for key, retired in said.items() if not retired and key not in kept_out])
        self.selector.retire(gone)
        if gone and self.selector.in_play < self.least:
            self.selector.revive(gone)
            log.warning(
                "people retired %d tasks, which would leave fewer than the %d that a step needs; none of "
                "them is retired. Bring some back, or give more tasks.",
                len(gone),
                self.least,
            )


def retired_by_people(run: Run, stage: RlParts) -> RetiredByPeople | None:
    """For a stage before it is resumed; what was said before the run first began is applied.

    Returns: None where this run draws no tasks, or its selector's tasks cannot be retired.
    """
    chosen = stage.dispatcher.selector
    inner = chosen.selector if isinstance(chosen, TaskCurator) else chosen
    if stage.planned_elsewhere is not None or not isinstance(inner, OpenSelector):
        return None
    found = RetiredByPeople(run.buffer, inner, stage.curator, stage.schedule.groups_per_step)
    starts = run.buffer.read("runs", ["created_at"], Compare("run_id", "eq", run.run_id))
    found.apply(min(starts["created_at"].to_pylist(), default=None))
    return found
