"""The tasks of a selector by place, in arrays: a million tasks cost a few dozen bytes each.

Places 0 to base - 1 are the first tasks, sorted by key; tasks added later follow in the order they were
added. So a place means the same task after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rft_data.core.rows import Task, TaskKey
from rft_data.tasks.selectors.packing import pack, unpack

_WORD = 0xFFFFFFFFFFFFFFFF


class Roster:
    """Keys and tasks by place, and the place of a key in O(log N)."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        """A task that is given twice counts once."""
        self.tasks: list[Task] = []
        """Tasks by place."""
        self.given = np.empty(0, np.int32)
        """Rank of each place in the order the tasks were given."""
        self.tasksets: list[str] = []
        self.taskset = np.empty(0, np.int32)
        """Index into `tasksets`, by place."""
        self._ids = np.empty((0, 2), np.uint64)
        self.base = 0
        """Number of first tasks."""
        self._append(tasks)
        self.base = len(self.tasks)
        self._reorder(np.lexsort((self._ids[:, 1], self._ids[:, 0], self._by_name())))

    def __len__(self) -> int:
        return len(self.tasks)

    def keys(self, places: Sequence[int]) -> list[TaskKey]:
        """The keys of these places."""
        named = zip(self._ids[places].tolist(), self.taskset[places].tolist(), strict=True)
        return [TaskKey(self.tasksets[code], f"{first:016x}{second:016x}") for (first, second), code in named]

    def places(self, keys: Sequence[TaskKey]) -> list[int]:
        """The place of each key; -1 for an unknown key."""
        codes = {name: code for code, name in enumerate(self.tasksets)}
        words = np.array([_words(key.task_id) for key in keys], np.uint64).reshape(-1, 2)
        wanted = np.array([codes.get(key.taskset, -1) for key in keys], np.int32)
        found: list[int] = self._find(words, wanted).tolist()
        return found

    def add(self, tasks: Sequence[Task]) -> int:
        """Append the tasks that are new; returns how many."""
        known = self.places([task.key for task in tasks])
        before = len(self)
        self._append([task for task, place in zip(tasks, known, strict=True) if place < 0])
        self._reorder(np.arange(len(self)))
        return len(self) - before

    def added(self) -> list[list[str]]:
        """The keys of added tasks, in order, as JSON values."""
        return [[key.taskset, key.task_id] for key in self.keys(range(self.base, len(self)))]

    def arrange(self, added: Sequence[Sequence[str]]) -> None:
        """Order added tasks as in a roster to which these keys were added; all other added tasks go last."""
        later = [p for p in self.places([TaskKey(*key) for key in added]) if p >= 0]
        moved = np.zeros(len(self), bool)
        moved[later] = True
        first = np.flatnonzero(~moved[: self.base])
        own = self.base + np.flatnonzero(~moved[self.base :])
        self.given[later] = len(self) + np.arange(len(later), dtype=np.int32)
        self.given[own] = 2 * len(self) + np.arange(len(own), dtype=np.int32)
        self.base = len(first)
        self._reorder(np.concatenate([first, np.array(later, np.int64), own]))

    def pack(self, places: np.ndarray) -> dict[str, object]:
        """Names of these places, 27 characters each."""
        return {
            "tasksets": self.tasksets,
            "taskset": pack(self.taskset[places]),
            "task_id": pack(self._ids[places]),
        }

    def unpack(self, packed: dict[str, Any]) -> np.ndarray:
        """The places of packed names; -1 for a task that no longer exists."""
        words = unpack(packed["task_id"], np.uint64).reshape(-1, 2)
        codes = unpack(packed["taskset"], np.int32)
        names = {name: code for code, name in enumerate(self.tasksets)}
        ours = np.array([names.get(name, -1) for name in packed["tasksets"]], np.int32)[codes]
        return self._find(words, ours)

    def _find(self, words: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Places of tasks by both words of their ids and their tasksets; -1 for unknown tasks."""
        found = np.full(len(words), -1, np.int64)
        at = np.searchsorted(self._sorted, words[:, 0])
        # one question may be in several tasksets; equal ids are neighbours, so try the next one too
        for _ in range(max(1, len(self.tasksets))):
            inside = np.flatnonzero((found < 0) & (at < len(self)))
            place = self._sorter[at[inside]]
            same = (self._ids[place] == words[inside]).all(axis=1) & (self.taskset[place] == codes[inside])
            found[inside[same]] = place[same]
            at += 1
        return found

    def _append(self, tasks: Sequence[Task]) -> None:
        fresh = {task.key: task for task in tasks}
        if not fresh:
            return
        codes = {name: code for code, name in enumerate(self.tasksets)}
        mine = np.array([codes.setdefault(key.taskset, len(codes)) for key in fresh], np.int32)
        words = np.frombuffer(bytes.fromhex("".join(key.task_id for key in fresh)), ">u8")
        ranks = np.arange(len(self), len(self) + len(fresh), dtype=np.int32)
        self.tasksets = list(codes)
        self.tasks += fresh.values()
        self.taskset = np.concatenate([self.taskset, mine])
        self.given = np.concatenate([self.given, ranks])
        self._ids = np.concatenate([self._ids, words.reshape(-1, 2).astype(np.uint64)])

    def _by_name(self) -> np.ndarray:
        """The rank of each place's taskset by name."""
        order = sorted(range(len(self.tasksets)), key=self.tasksets.__getitem__)
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return rank[self.taskset]

    def _reorder(self, order: np.ndarray) -> None:
        self.tasks = [self.tasks[place] for place in order.tolist()]
        self.taskset = self.taskset[order]
        self.given = self.given[order]
        self._ids = self._ids[order]
        found, first = np.unique(self.taskset, return_index=True)
        codes = found[
            np.argsort(first)
        ].tolist()  # tasksets are also in an order that is the same after a restart
        self.tasksets, self.taskset = (
            [self.tasksets[code] for code in codes],
            np.argsort(codes).astype(np.int32)[self.taskset],
        )
        self._sorter = np.argsort(self._ids[:, 0], kind="stable").astype(np.int32)
        self._sorted = self._ids[self._sorter, 0]


def _words(task_id: str) -> tuple[int, int]:
    """Both halves of a content hash as numbers; (0, 0) for any other text, which matches no task."""
    try:
        return int(task_id[:16], 16) & _WORD, int(task_id[16:], 16) & _WORD
    except ValueError:
        return 0, 0
