"""Curation that goes on during a run: at a checkpoint, the record of every task is judged again.

Tasks that the operators drop are retired, retired ones that they keep come back, and new ones may be made.
The selector is told; it alone decides what is played. The trainer and the explorers notice nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.core.codec import to_tasks
from rft_data.core.errors import ResumeError
from rft_data.core.filters import In
from rft_data.core.rows import GroupResult, Task, TaskKey
from rft_data.core.words import Split
from rft_data.tasks.record import played, tally
from rft_data.tasks.selectors.base import OpenSelector
from rft_data.tasks.synthesis import SYNTHESISED, Synthesis, synthesise
from rft_data.tasks.table import task_table, with_played

if TYPE_CHECKING:
    from rft_data.buffer import Buffer

log = logging.getLogger(__name__)


class TaskVerdicts(Protocol):
    """What operators did with N tasks."""

    @property
    def kept(self) -> npt.NDArray[np.int64]:
        """Rows that stay."""
        ...

    @property
    def table(self) -> pa.Table:
        """Those rows, with what operators edited or added."""
        ...

    @property
    def reports(self) -> Sequence[Any]:
        """One per operator: `name`, `dropped` and `quarantined` (row to reason)."""
        ...


class TaskPipeline(Protocol):
    """Operators over tasks."""

    def run_tasks(self, table: pa.Table) -> TaskVerdicts:
        """Judge every task of a `task_table`."""
        ...

    def close(self) -> None:
        """Give up what the operators hold; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Curated:
    """What one round of curation changed."""

    step: int
    retired: Mapping[TaskKey, str]
    """Task to `operator: reason`."""
    revived: tuple[TaskKey, ...]
    added: tuple[TaskKey, ...]
    failures: Mapping[TaskKey, str]
    """Tasks that an operator or the synthesis failed on; they stay as they are."""
    difficulty: Mapping[TaskKey, float]
    """As the operators left it, of the tasks they kept; without those that have none."""


@dataclass
class TaskCurator:
    """A selector (rft_data.core.protocols.Selector) whose tasks change as the run goes on.

    It hands everything to the selector inside; `curate` alone is its own, and its state is saved with the
    inner one's. Call that at steps where a checkpoint is taken and before its state is: then a resumed
    run, which replays selections since the checkpoint, plays the same tasks. Where the operators would
    leave fewer than `least_playable` tasks, none is retired.
    """

    buffer: Buffer
    run_id: str
    selector: OpenSelector
    tasks: dict[TaskKey, Task]
    """The run's first tasks, in the dispatcher's own mapping: every made task that is stored is put in, so
    that open groups of a killed run find theirs. Those do not count until this run makes them (again).
    """
    pipeline: TaskPipeline
    every: int
    """Optimizer steps between two rounds; a multiple of those between two checkpoints."""
    least_playable: int
    synthesis: Synthesis | None = None
    admit: Callable[[Sequence[Task]], list[Task]] = list
    """Which of the new tasks are let in; they are cleaned and compared with the held-out ones here."""
    seed: int = 0
    retired: set[TaskKey] = field(default_factory=set, init=False)
    added: list[TaskKey] = field(default_factory=list, init=False)
    """Made by this run, in order."""
    _tried: set[TaskKey] = field(default_factory=set, init=False)
    """Tasks that had their turn at getting variants."""
    _last: Curated | None = field(default=None, init=False)
    _table: pa.Table = field(default=None, init=False)
    """The tasks as a table, without their record: hashing the prompts of all anew would take seconds."""

    def __post_init__(self) -> None:
        self._first = list(self.tasks)
        for task in made_tasks(self.buffer):
            self.tasks.setdefault(task.key, task)

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks in play."""
        return self.selector.select(n)

    def observe(self, results: Sequence[GroupResult]) -> None:
        """The selector learns; the curator reads the stored groups instead."""
        self.selector.observe(results)

    def due(self, step: int) -> bool:
        """Whether tasks are curated after this optimizer step."""
        return step % self.every == 0

    def curate(self, step: int, set_aside: Collection[str] = ()) -> Curated:
        """Judge every task by the stored groups of this run, and tell the selector what changed.

        Args: set_aside: groups that do not count: what the ledger retired.
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
        # another run may have stored the same task first: what a resumed run would find is played from now on
        self.tasks.update(_stored(self.buffer, new))
        self.selector.add([self.tasks[key] for key in new])
        self.added += new
        return tuple(new)

    def warn_of_replay(self, step: int, leased: Collection[int]) -> None:
        """Say so when a run falls back, over a damaged checkpoint, to one from before a curation.

        Rounds that were leased after it are replayed with the tasks from before it.
        Args: step: of the checkpoint taken up. leased: steps that have a lease.
        """
        crossed = [at for at in range(step + 1, max(leased, default=step) + 1) if self.due(at)]
        if crossed:
            log.warning(
                "going on from step %d, before tasks were curated at step %s; what was leased since is "
                "replayed with the tasks from before: this run will choose other tasks than an unharmed one.",
                step,
                ", ".join(map(str, crossed)),
            )

    def close(self) -> None:
        """End the operators' workers, if any; idempotent."""
        self.pipeline.close()

    def state_dict(self) -> dict[str, Any]:
        """The selector's state, and which tasks are retired, made and had their turn, as JSON values."""
        return {
            "selector": self.selector.state_dict(),
            "retired": _listed(sorted(self.retired)),
            "added": _listed(self.added),
            "tried": _listed(sorted(self._tried)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; once, before anything is selected.

        Raises: ResumeError when a task the run had made is not among `tasks`; what the selector raises.
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
        self.added, self.retired, self._tried = (
            added,
            set(_keys(state["retired"])),
            set(_keys(state["tried"])),
        )
        self.selector.add([self.tasks[key] for key in added])
        self.selector.load_state_dict(state["selector"])

    def metrics(self) -> dict[str, float]:
        """The selector's, and tasks in play, retired and made, and what the last round found."""
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
    """Every stored task that some run made; which one is not written down, two may make the same."""
    return [task for task in buffer.tasks("train") if SYNTHESISED in task.tags]


def _stored(buffer: Buffer, keys: Collection[TaskKey]) -> dict[TaskKey, Task]:
    """Those of the keys that are stored, whoever stored them, as training tasks."""
    ids = tuple(sorted({key.task_id for key in keys}))
    found = to_tasks(buffer.read("tasks", None, In("task_id", ids)))
    return {task.key: replace(task, split=Split.TRAIN) for task in found if task.key in keys}


def _outcome(
    keys: Sequence[TaskKey], reports: Sequence[Any]
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
