"""Curation during a run: at a checkpoint, the operators judge every task again by its record.

Tasks that the operators drop are retired, retired tasks that they keep are revived, and new tasks may be
made. The selector is told of every change, and alone decides which tasks are played.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rft_data.core.codec import to_tasks
from rft_data.core.errors import ResumeError
from rft_data.core.filters import In
from rft_data.core.groups import GroupResult
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import Split
from rft_data.tasks.record import played, tally
from rft_data.tasks.selectors.interfaces import OpenSelector
from rft_data.tasks.synthesis import SYNTHESISED, Synthesis, synthesise
from rft_data.tasks.table import task_table, with_played
from rft_data.tasks.task_pipeline import TaskPipeline, TaskReport

if TYPE_CHECKING:
    from rft_data.buffer import Buffer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Curated:
    """The changes of one round of curation."""

    step: int
    retired: Mapping[TaskKey, str]
    """Task to `operator: reason`."""
    revived: tuple[TaskKey, ...]
    added: tuple[TaskKey, ...]
    failures: Mapping[TaskKey, str]
    """Tasks that an operator or the synthesis failed on; they stay as they are."""
    difficulty: Mapping[TaskKey, float]
    """Difficulty of the kept tasks after the operators; tasks without a difficulty are left out."""


@dataclass
class TaskCurator:
    """A selector (rft_data.core.protocols.Selector) whose tasks change as the run goes on.

    Every call except `curate` is passed on to the inner selector, whose state is saved with this one's.
    Call `curate` at the step of a checkpoint, before the state is saved: a resumed run repeats the
    selections since the checkpoint, and then plays the same tasks. If the operators would leave fewer than
    `least_playable` tasks, none is retired.
    """

    buffer: Buffer
    run_id: str
    selector: OpenSelector
    tasks: dict[TaskKey, Task]
    """The run's first tasks, in the mapping that the dispatcher uses. Every stored synthesised task is added,
    so that open groups of a killed run find theirs; it is selected only once this run makes it (again)."""
    pipeline: TaskPipeline
    every: int
    """Optimizer steps between two rounds; a multiple of the steps between two checkpoints."""
    least_playable: int
    synthesis: Synthesis | None = None
    admit: Callable[[Sequence[Task]], list[Task]] = list
    """Filters new tasks: cleans them and compares them with the held-out tasks."""
    seed: int = 0
    retired: set[TaskKey] = field(default_factory=set, init=False)
    added: list[TaskKey] = field(default_factory=list, init=False)
    """Made by this run, in order."""
    _tried: set[TaskKey] = field(default_factory=set, init=False)
    """Tasks for which variants were already requested."""
    _last: Curated | None = field(default=None, init=False)
    _table: pa.Table = field(default=None, init=False)
    """The tasks as a table without their record; kept, because hashing all prompts takes seconds."""

    def __post_init__(self) -> None:
        self._first = list(self.tasks)
        for task in made_tasks(self.buffer):
            self.tasks.setdefault(task.key, task)

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks in play."""
        return self.selector.select(n)

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Let the selector learn; the curator reads the stored groups instead."""
        self.selector.observe(results)

    def due(self, step: int) -> bool:
        """Whether tasks are curated after this optimizer step."""
        return step % self.every == 0

    def curate(self, step: int, set_aside: Collection[str] = ()) -> Curated:
        """Judge every task by the stored groups of this run, and tell the selector what changed.

        Args: set_aside: groups that do not count, because the ledger retired them.
        Raises: OperatorError; RowError from a synthesis that returns no training tasks.
        """
        keys = [*self._first, *self.added]
        record = played(self.buffer, run_id=self.run_id, set_aside=set_aside)
        if self._table is None or self._table.num_rows < len(keys):
            self._table = task_table([self.tasks[key] for key in keys])
        table = with_played(self._table, record)
        verdicts = self.pipeline.run_tasks(table)
        dropped, failures = _outcome(keys, verdicts.reports)
        kept = [keys[place] for place in verdicts.kept]
        retired = self._retire(dropped, playable=len(keys) - len(dropped))
        revived = tuple(key for key in kept if key in self.retired)
        self.selector.revive(revived)
        self.retired.difference_update(revived)
        added = self._synthesise(keys, table, step, set_aside, failures)
        known = zip(kept, verdicts.table["difficulty"].to_pylist(), strict=True)
        difficulty = {key: value for key, value in known if value is not None}
        self._last = Curated(step, retired, revived, added, failures, difficulty)
        log.info(
            "tasks at step %d: %d retired, %d revived, %d added", step, len(retired), len(revived), len(added)
        )
        return self._last

    def _retire(self, dropped: Mapping[TaskKey, str], playable: int) -> dict[TaskKey, str]:
        fresh = {key: why for key, why in dropped.items() if key not in self.retired}
        if fresh and playable < self.least_playable:
            log.warning(
                "the operators would retire %d of the tasks and leave %d, fewer than the %d that a step "
                "needs; none is retired. Loosen the operators or give more tasks.",
                len(fresh),
                playable,
                self.least_playable,
            )
            return {}
        self.selector.retire(list(fresh))
        self.retired.update(fresh)
        return fresh

    def _synthesise(
        self,
        keys: Sequence[TaskKey],
        table: pa.Table,
        step: int,
        set_aside: Collection[str],
        failures: dict[TaskKey, str],
    ) -> tuple[TaskKey, ...]:
        if self.synthesis is None:
            return ()
        passes, rollouts = tally(table, None)
        barred = np.array([key in self._tried or key in self.retired for key in keys], bool)
        parents = [keys[place] for place in self.synthesis.choose(passes, rollouts, barred)]
        self._tried.update(parents)
        made = synthesise(
            [self.tasks[key] for key in parents],
            self.buffer,
            self.synthesis,
            (self.seed, step),
            run_id=self.run_id,
            set_aside=set_aside,
        )
        failures.update(made.failures)
        known = set(keys)
        new = {task.key: task for task in self.admit(made.tasks) if task.key not in known}
        self.buffer.add_tasks(list(new.values()))
        # another run may have stored the same task first; play the stored one, as a resumed run would
        self.tasks.update(_stored(self.buffer, new))
        self.selector.add([self.tasks[key] for key in new])
        self.added += new
        return tuple(new)

    def close(self) -> None:
        """End the operators' workers, if any; idempotent."""
        self.pipeline.close()

    def state_dict(self) -> dict[str, object]:
        """The selector's state, and the retired, added and tried tasks, as JSON values."""
        return {
            "selector": self.selector.state_dict(),
            "retired": _listed(sorted(self.retired)),
            "added": _listed(self.added),
            "tried": _listed(sorted(self._tried)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; once, before anything is selected.

        Raises: ResumeError when a task that the run had made is not stored; errors of the selector.
        """
        added = _keys(state["added"])
        self.tasks.update(_stored(self.buffer, added))
        missing = [key for key in added if key not in self.tasks]
        if missing:
            raise ResumeError(
                f"task '{missing[0].task_id}' of taskset '{missing[0].taskset}', which run '{self.run_id}' "
                f"had made, is not in the buffer {self.buffer.location} ({len(missing)} such tasks); restore "
                "the buffer, or start the run over with --fresh."
            )
        self.added = added
        self.retired = set(_keys(state["retired"]))
        self._tried = set(_keys(state["tried"]))
        self.selector.add([self.tasks[key] for key in added])
        self.selector.load_state_dict(state["selector"])

    def metrics(self) -> dict[str, float]:
        """The selector's metrics; counts of tasks in play, retired and made; figures of the last round."""
        known = len(self._first) + len(self.added)
        last = self._last
        levels = list(last.difficulty.values()) if last else []
        return {
            **self.selector.metrics(),
            **({"tasks/difficulty": float(np.mean(levels))} if levels else {}),
            "tasks/playable": float(known - len(self.retired)),
            "tasks/retired": float(len(self.retired)),
            "tasks/synthesised": float(len(self.added)),
            "tasks/newly_retired": float(len(last.retired)) if last else 0.0,
            "tasks/revived": float(len(last.revived)) if last else 0.0,
        }


def made_tasks(buffer: Buffer) -> list[Task]:
    """Every stored task that a run synthesised; which run is not stored: two may make the same task."""
    return [task for task in buffer.tasks("train") if SYNTHESISED in task.tags]


def _stored(buffer: Buffer, keys: Collection[TaskKey]) -> dict[TaskKey, Task]:
    """The stored tasks with these keys, from any run, as training tasks."""
    ids = tuple(sorted({key.task_id for key in keys}))
    found = to_tasks(buffer.read("tasks", None, In("task_id", ids)))
    return {task.key: replace(task, split=Split.TRAIN) for task in found if task.key in keys}


def _outcome(
    keys: Sequence[TaskKey], reports: Sequence[TaskReport]
) -> tuple[dict[TaskKey, str], dict[TaskKey, str]]:
    """Dropped tasks, and tasks that an operator failed on, with operator and reason."""
    dropped: dict[TaskKey, str] = {}
    failures: dict[TaskKey, str] = {}
    for report in reports:
        dropped |= {keys[row]: f"{report.name}: {why}" for row, why in report.dropped.items()}
        failures |= {keys[row]: why for row, why in report.quarantined.items()}
    return dropped, failures


def _listed(keys: Sequence[TaskKey]) -> list[list[str]]:
    return [[key.taskset, key.task_id] for key in keys]


def _keys(listed: Sequence[Sequence[str]]) -> list[TaskKey]:
    return [TaskKey(*key) for key in listed]
