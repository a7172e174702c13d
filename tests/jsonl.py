"""Tasks of a JSON-lines file, read as a recipe's taskset reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rft_data.core.rows import Task
from rft_data.recipe.tasksets import Taskset
from rft_data.run.build import taskset_tasks


def jsonl_tasks(path: Path, **section: Any) -> list[Task]:
    """`section`: keys of the taskset besides `name` and `source`."""
    source = {"use": "jsonl", "path": str(path)}
    return taskset_tasks(Taskset.model_validate({"name": "t", "source": source, **section}))
