"""The columns of rows: their kinds, what is missing, and which could be a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.core.rows import Task
from rft_data.recipe.task_sources import StoredTasks
from rft_data.recipe.tasksets import Taskset
from rft_data.run.data_check.report import Column

_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "number",
    float: "number",
    str: "text",
    list: "list",
    dict: "map",
}
MESSAGES = "messages"
_SHOWN = ("images", "tools")
"""Keys of a taskset that show a column to the model; such columns are called the same."""


def columns_in(rows: Sequence[Mapping[str, object]]) -> list[Column]:
    """The columns of rows, in the order in which they are met."""
    kinds: dict[str, dict[str, int]] = {}
    for row in rows:
        for name, value in row.items():
            found = kinds.setdefault(name, {})
            if value is not None:
                kind = _kind(value)
                found[kind] = found.get(kind, 0) + 1
    return [
        Column(name, " or ".join(found) or "nothing", len(rows) - sum(found.values()))
        for name, found in kinds.items()
    ]


def possible_prompts(columns: Sequence[Column]) -> list[str]:
    """The columns that hold text or messages."""
    return [one.name for one in columns if one.kind in ("text", MESSAGES)]


def kept_unseen(section: Taskset, tasks: Sequence[Task]) -> list[str]:
    """Hints for columns of images and tools that are kept in metadata and not shown to the model."""
    if isinstance(section.source, StoredTasks):
        return []
    return [
        f"column '{name}' is kept in metadata and not shown to the model; write {name}: {name} in the "
        "taskset to have it shown, or say with 'metadata' which columns are kept"
        for name in _SHOWN
        if getattr(section, name) is None
        and name not in (section.metadata or ())
        and any(task.metadata.get(name) for task in tasks)
    ]


def _kind(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "role" in one for one in value):
        return MESSAGES
    return _KINDS.get(type(value), type(value).__name__)
