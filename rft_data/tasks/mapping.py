"""How the columns of a row become a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rft_data.core.chat import tools as tool_definitions
from rft_data.core.errors import RowError
from rft_data.core.heldout import prompt_share
from rft_data.core.json_types import Json
from rft_data.core.rows import OFFERED_TOOLS, Task
from rft_data.core.words import Split
from rft_data.tasks.columns import answer_text, filled, pick, prompt_messages, value_at, with_system
from rft_data.tasks.task_images import with_images


@dataclass(frozen=True, slots=True)
class RowMapping:
    """Columns, or templates of columns, for each part of a task."""

    taskset: str
    prompt: str
    answer: str | None = None
    """The column of the answer; None: the tasks have no answer."""
    metadata: Sequence[str] | None = None
    """Fields that a task keeps; None: all columns but prompt and answer that are not null."""

    def task(self, row: Mapping[str, object], where: str) -> Task:
        """The task of a row. Raises: RowError naming `where`."""
        if self.metadata is None:
            kept = {
                key: value
                for key, value in row.items()
                if key not in (self.prompt, self.answer) and value is not None
            }
        else:
            kept = kept_fields(row, self.metadata, where)
        named = f"{where}: field '{self.prompt}'"
        asked = prompt_messages(value_at(row, self.prompt, where), named)
        reference = None if self.answer is None else answer_text(value_at(row, self.answer, where))
        return Task(self.taskset, asked, reference, metadata=kept)


def kept_fields(row: Mapping[str, object], fields: Sequence[str], where: str) -> dict[str, object]:
    """The metadata that a task keeps of a row. Raises: RowError for a field that is not there."""
    return {field: pick(row, field, where) for field in fields}


@dataclass(frozen=True, slots=True)
class Finish:
    """Values that a taskset adds to each of its tasks, whichever way they were read."""

    system: str | None = None
    """System message, or a template of it."""
    images: str | None = None
    """Column of the images."""
    folder: Path = Path()
    """Folder at which paths of images begin."""
    tools: str | None = None
    """Column of the tools that the task offers."""
    workflow: str | None = None
    """Name of the workflow, or a template of it."""
    reward: str | None = None
    """Name of the reward, or a template of it."""
    difficulty: float | None = None
    heldout: float = 0.0
    """Share that is held out, by a hash of the prompt."""

    def task(self, task: Task, row: Mapping[str, object], where: str) -> Task:
        """The whole task. Raises: RowError, MissingFileError naming `where`."""
        if self.images is not None:
            task = with_images(task, row, self.images, where, self.folder)
        if self.tools is not None:
            task = _with_tools(task, row, self.tools, where)
        messages = task.messages
        if self.system is not None:
            messages = with_system(messages, filled(self.system, row, where), where)
        return replace(
            task,
            messages=messages,
            split=Split.HELDOUT if prompt_share(messages) < self.heldout else Split.TRAIN,
            difficulty=self.difficulty,
            workflow=None if self.workflow is None else filled(self.workflow, row, where),
            reward=None if self.reward is None else filled(self.reward, row, where),
        )


def _with_tools(task: Task, row: Mapping[str, object], column: str, where: str) -> Task:
    """The task with the tools of its row. Raises: RowError for a column that does not hold definitions."""
    try:
        found = tool_definitions(cast(Json, value_at(row, column, where)))
    except RowError as err:
        raise RowError(f"{where}: {err}") from err
    kept = {key: value for key, value in task.metadata.items() if key != column}
    return replace(task, metadata=kept if found is None else {**kept, OFFERED_TOOLS: found})
