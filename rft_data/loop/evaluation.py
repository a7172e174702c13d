"""An evaluation by the explorers of a fleet. The death of an explorer costs it time, and no answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed

from rft_data.buffer import Buffer
from rft_data.core.filters import Compare
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import RowSource
from rft_data.loop.fleet import MAY_RESTART, Fleet

log = logging.getLogger(__name__)

_NAMES = ["seq", "taskset", "task_id", "group_id"]


def evaluate(fleet: Fleet, buffer: Buffer, tasks: Sequence[Task], label: str, samples: int) -> list[int]:
    """Play each task on the weights published last; returns the stored rows' numbers.

    Of an explorer that died, what it had stored counts, and its other tasks are played by those that serve
    then. A row has the same id whoever plays it, so no task is played again once it is stored.

    Args:
        label: the groups of the rows are `{label}-{task_id}`.
        samples: 1 is greedy; more are sampled as groups are.

    Raises: what an explorer raised, if a restart cannot help or was tried as often as the fleet allows.
    """
    fleet.settle()
    seqs, lost = _asked(fleet, tasks, label, samples)
    while lost:
        fleet.settle()  # by then the processes have ended
        found = _stored(buffer, label)
        seqs += [seq for task in lost for seq in found.get(task.key, ())]
        missing = [task for task in lost if task.key not in found]
        log.warning("%d of %d tasks are evaluated again: their explorer died", len(missing), len(tasks))
        more, lost = _asked(fleet, missing, label, samples)
        seqs += more
    return seqs


def _asked(fleet: Fleet, tasks: Sequence[Task], label: str, samples: int) -> tuple[list[int], list[Task]]:
    """The rows of the tasks that were played, and the tasks whose explorers died; those are started again."""
    serving = [member for member in fleet.members if member.stays]
    calls: dict[Future[list[int]], int] = {}
    shares = list(_shares(tasks, len(serving)))
    for place, share in enumerate(shares):
        asked = {"tasks": share, "label": label, "samples": samples}
        call = serving[place].role.call("evaluate", list[int], deadline_s=fleet.deadline_s, **asked)
        calls[call] = place
    lost: set[int] = set()
    for call in as_completed(calls):
        member = serving[calls[call]]
        try:
            call.result()
            member.deaths = 0
        except MAY_RESTART as err:
            fleet.restart(member, err)
            if member.extra:  # its end is not waited for otherwise, and it may still store rows
                member.role.close()
            lost.add(calls[call])
    seqs = [seq for call, place in calls.items() if place not in lost for seq in call.result()]
    return seqs, [task for place in sorted(lost) for task in shares[place]]


def _shares(tasks: Sequence[Task], n: int) -> Iterator[list[Task]]:
    """At most n shares, none of them empty."""
    size = max(1, -(-len(tasks) // n))
    return (list(tasks[first : first + size]) for first in range(0, len(tasks), size))


def _stored(buffer: Buffer, label: str) -> Mapping[TaskKey, Sequence[int]]:
    """Numbers of the stored rows of an evaluation, by task; an explorer stores all rows of a task at once."""
    found: dict[TaskKey, list[int]] = {}
    for row in buffer.read("experiences", _NAMES, Compare("source", "eq", RowSource.EVAL)).to_pylist():
        if row["group_id"] == f"{label}-{row['task_id']}":
            found.setdefault(TaskKey(row["taskset"], row["task_id"]), []).append(row["seq"])
    return found
