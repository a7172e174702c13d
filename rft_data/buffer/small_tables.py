"""The small tables with a key: tasks, preferences, feedback, payloads. Each row is stored once."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from rft_data.buffer.maintenance import maintain
from rft_data.buffer.store import Store
from rft_data.core.canonical import bytes_id
from rft_data.core.codec import to_table
from rft_data.core.errors import IntegrityError, RowError
from rft_data.core.filters import Compare
from rft_data.core.rows import Feedback, PreferencePair, Task, TaskKey, now
from rft_data.core.schema import FEEDBACK, PREFERENCES, TABLES, TASKS

KeyT = TypeVar("KeyT")


class SmallTables:
    """Adds rows that are not stored yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, set[object]] = {}
        self._lock = threading.Lock()

    def task_keys(self) -> list[TaskKey]:
        """Keys of all stored tasks."""
        rows = self._store.rows("tasks").scan(["taskset", "task_id"])
        return [TaskKey(*pair) for pair in zip(*(column.to_pylist() for column in rows.columns), strict=True)]

    def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Store new tasks; returns how many were new."""
        rows = {task.key: {**_fields(task), "task_id": task.task_id, "created_at": now()} for task in tasks}
        return self._add("tasks", rows, lambda: set(self.task_keys()), TASKS)

    def add_preferences(self, pairs: Sequence[PreferencePair]) -> int:
        """Store new pairs; returns how many were new."""
        rows = {pair.preference_id: {**_fields(pair), "preference_id": pair.preference_id} for pair in pairs}
        return self._add("preferences", rows, lambda: self._ids("preferences"), PREFERENCES)

    def add_feedback(
        self, feedback: Sequence[Feedback], stored_digests: Callable[[Sequence[str]], Mapping[str, str]]
    ) -> int:
        """Store new feedback about stored experiences; returns how many were new.

        Feedback with the content of a stored row is new only if it has a time, and another than that row. So
        feedback sent again without a time is not new, nor are rows copied from another buffer.
        """
        digests = stored_digests([item.experience_id for item in feedback])
        rows: dict[str, dict[str, object]] = {}
        for item in feedback:
            if item.experience_id not in digests:
                raise RowError(
                    f"feedback '{item.key}' by '{item.author}' is about experience '{item.experience_id}', "
                    "which is not stored; give the id of a stored experience."
                )
            if item.value is not None and not math.isfinite(item.value):
                raise RowError(f"feedback '{item.key}' has value {item.value}; a finite number is needed.")
            name = item.feedback_id
            about = {"feedback_id": name, "experience_digest": digests[item.experience_id]}
            rows[name] = {**_fields(item), "created_at": item.created_at or now(), **about}
        return self._add("feedback", rows, self._feedback_ids, FEEDBACK, _feedback_ids)

    def _feedback_ids(self) -> set[object]:
        rows = self._store.rows("feedback").scan([field.name for field in fields(Feedback)])
        return {
            name for batch in rows.to_batches() for row in batch.to_pylist() for name in _feedback_ids(row)
        }

    def add_payload(self, data: bytes, media_type: str) -> str:
        """Store a payload once; returns its id."""
        name = bytes_id(data)
        row = {
            "payload_id": name,
            "media_type": media_type,
            "size": len(data),
            "data": data,
            "created_at": now(),
        }
        self._add("payloads", {name: row}, lambda: self._ids("payloads"), TABLES["payloads"][0])
        return name

    def payload(self, payload_id: str) -> tuple[str, bytes]:
        """(media type, bytes) of a payload."""
        rows = self._store.rows("payloads").large_rows(
            ["media_type", "data"], Compare("payload_id", "eq", payload_id)
        )
        for row in rows.to_pylist():
            if bytes_id(row["data"]) == payload_id:
                return row["media_type"], row["data"]
            raise IntegrityError(
                f"payload '{payload_id}' of buffer {self._store.location} does not match its id."
            )
        raise IntegrityError(f"buffer {self._store.location} has no payload '{payload_id}'.")

    def _ids(self, name: str) -> set[object]:
        key = TABLES[name][1]
        return set(self._store.rows(name).scan([str(key)]).column(0).to_pylist())

    def _add(
        self,
        name: str,
        rows: Mapping[KeyT, Mapping[str, object]],
        stored: Callable[[], set[object]],
        schema: pa.Schema,
        row_keys: Callable[[Mapping[str, object]], Collection[str]] | None = None,
    ) -> int:
        with self._lock:
            if name not in self._known:
                self._known[name] = stored()
                self._store.sync(name)  # stored rows may come from a write that was not synced
            fresh = {key: row for key, row in rows.items() if key not in self._known[name]}
            if fresh:
                known = self._known.pop(name)  # read again if the outcome of this write is unknown
                self._store.add(name, to_table(list(fresh.values()), schema))
                known.update(
                    fresh if row_keys is None else chain.from_iterable(map(row_keys, fresh.values()))
                )
                self._known[name] = known
        maintain(self._store, name)
        return len(fresh)


def _fields(row: Task | PreferencePair | Feedback) -> dict[str, object]:
    return {field.name: getattr(row, field.name) for field in fields(row)}


def _feedback_ids(row: Mapping[str, Any]) -> tuple[str, str]:
    """Both ids of a stored row of feedback: with its time, and without."""
    feedback = Feedback(**{field.name: row[field.name] for field in fields(Feedback)})
    return feedback.feedback_id, replace(feedback, created_at=None).feedback_id
