"""MBPP's questions do not name the function that is wanted: the model is shown the first of the tests."""

from __future__ import annotations

from explorers.conversations.recording import RecordingModel
from rft_data import RowError, Task


async def solve(task: Task, model: RecordingModel) -> None:
    """Ask for a function; the recipe's reward runs all tests, most of which the model has not seen.

    Raises: RowError for a task without `test_list`.
    """
    tests = task.metadata.get("test_list")
    if not tests:
        raise RowError(f"task '{task.task_id}' has no 'test_list'; name it in the taskset's 'metadata'.")
    *before, question = task.messages
    text = f"{question['content']}\nIt must pass tests such as this one:\n```python\n{tests[0]}\n```"
    await model.chat([*before, {**question, "content": text}])
