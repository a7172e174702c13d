"""The task of each ticket, and the open tickets.

Tasks whose explorer died go first; the selector chooses the rest. Nothing is admitted or played here.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.groups import Assignment, Ticket
from rft_data.core.protocols import Selector
from rft_data.core.rows import Task, TaskKey

log = logging.getLogger(__name__)

_CHANCES = 1
"""How often a task that was lost with its explorer is played again."""


class Dispatcher:
    """Assigns tasks to tickets and remembers the open ones."""

    def __init__(self, selector: Selector, tasks: Mapping[TaskKey, Task]) -> None:
        """`tasks`: every task the selector may name."""
        self.selector = selector
        self.open: dict[int, TaskKey] = {}
        """Task of each open ticket, by ordinal."""
        self.admitted = 0
        """One more than the highest ordinal that was assigned."""
        self.tasks = tasks
        self._again: deque[TaskKey] = deque()
        self._lost: Counter[TaskKey] = Counter()

    def assign(self, tickets: Sequence[Ticket]) -> list[Assignment]:
        """A task for each ticket of one round."""
        keys = self.draw(len(tickets))
        for ticket, key in zip(tickets, keys, strict=True):
            self.open[ticket.ordinal] = key
            self.admitted = max(self.admitted, ticket.ordinal + 1)
        return [Assignment(t, self.tasks[key]) for t, key in zip(tickets, keys, strict=True)]

    def draw(self, n: int) -> list[TaskKey]:
        """The next n tasks."""
        again = [self._again.popleft() for _ in range(min(n, len(self._again)))]
        return again + self.selector.select(n - len(again)) if n > len(again) else again

    def close(self, ticket: Ticket) -> None:
        """Forget an open ticket; idempotent."""
        self.open.pop(ticket.ordinal, None)

    def give_back(self, tasks: Sequence[TaskKey], *, blamed: bool = True) -> None:
        """Play these tasks next: their tickets were lost.

        A task that is lost a second time is not played again: it may be what kills the explorer.
        Args: blamed: whether the explorer died; one that left says nothing about its tasks.
        """
        for key in tasks:
            if key not in self.tasks:
                continue
            self._lost[key] += blamed
            if self._lost[key] <= _CHANCES:
                self._again.append(key)
            else:
                log.warning(
                    "task %s/%s is not played again: its explorer died twice", key.taskset, key.task_id
                )

    def state_dict(self) -> dict[str, object]:
        """Open tickets, and the tasks to be played again, as JSON values."""
        return {
            "admitted": self.admitted,
            "open": [[ordinal, key.taskset, key.task_id] for ordinal, key in self.open.items()],
            "again": [[key.taskset, key.task_id] for key in self._again],
            "lost": [[key.taskset, key.task_id, times] for key, times in self._lost.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.admitted = int(state["admitted"])
        self.open = {int(ordinal): TaskKey(*key) for ordinal, *key in state["open"]}
        self._again = deque(TaskKey(*key) for key in state["again"])
        self._lost = Counter({TaskKey(*key): int(times) for *key, times in state["lost"]})
