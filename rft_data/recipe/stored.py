"""A recipe as a run stored it, which may be of an older version."""

from __future__ import annotations

from typing import Any

from rft_data.recipe.task_sources import TABLES, kind_of_source


def as_it_was_read(stored: Any) -> Any:
    """The stored recipe, with what it meant when it was stored.

    Up to 0.6.0 a taskset of a file kept no further columns, and a stored one without `metadata` says so, as
    it does today where `metadata` was given as `[]`. Its tasks would have other ids with them.
    """
    tasks = stored.get("tasks") if isinstance(stored, dict) else None
    if not isinstance(tasks, list):
        return stored
    return {**stored, "tasks": [_with_metadata(one) for one in tasks]}


def _with_metadata(taskset: Any) -> Any:
    source = taskset.get("source") if isinstance(taskset, dict) else None
    return {"metadata": [], **taskset} if kind_of_source(source) in TABLES else taskset
