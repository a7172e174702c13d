"""Makes a judge's prompts: a template with a row's prompt, completion and reference answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rft_data.core.filters import In
from rft_data.core.rows import TaskKey

PLACES = ("prompt", "completion", "answer")
_PLACE = re.compile(r"\{(" + "|".join(PLACES) + r")\}")

DEFAULT_TEMPLATE = """You are a strict examiner. Below are a task and a proposed solution.

[Task]
{prompt}

[Solution]
{completion}

Judge how correct, complete and clear the solution is. Answer in one line of exactly this form:
Score: <a number from 0 (useless) to 10 (perfect)>"""


class PromptMaker:
    """Fills a template; placeholders inside a completion are left as text."""

    def __init__(self, template: str) -> None:
        """Raises: ValueError when the template does not show the judge the completion."""
        if "{completion}" not in template:
            raise ValueError(
                "template has no {completion}; wanted it, and {prompt} and {answer} if they help"
            )
        self._template = template
        self.wants_answer = "{answer}" in template
        self._answers: dict[TaskKey, str | None] = {}

    def prompts(self, table: pa.Table, store: object) -> list[str | None]:
        """One prompt a row; None where the template wants an answer and the task has none.

        Args: `store`: where tasks are stored, for rows without a column `answer`.
        Raises: ValueError when the rows have neither `messages` nor `prompt`, and the template wants one.
        """
        values: dict[str, Sequence[str | None]] = {"completion": table["completion_text"].to_pylist()}
        if "{prompt}" in self._template:
            values["prompt"] = _row_prompts(table)
        if self.wants_answer:
            values["answer"] = self._reference_answers(table, store)
        rows = zip(*values.values(), strict=True)
        return [self.filled(dict(zip(values, row, strict=True))) for row in rows]

    def filled(self, values: Mapping[str, str | None]) -> str | None:
        """The template with values by place; None where `answer` is one of them and None."""
        if values.get("answer", "") is None:
            return None
        return _PLACE.sub(lambda found: values[found[1]] or "", self._template)

    def _reference_answers(self, table: pa.Table, store: Any) -> list[str | None]:
        if "answer" in table.column_names:
            answers: list[str | None] = table["answer"].to_pylist()
            return answers
        pairs = zip(table["taskset"].to_pylist(), table["task_id"].to_pylist(), strict=True)
        keys = [TaskKey(taskset, task_id) for taskset, task_id in pairs]
        unknown = sorted({key.task_id for key in keys if key not in self._answers})
        if unknown:
            rows = store.read("tasks", ["taskset", "task_id", "answer"], In("task_id", tuple(unknown)))
            for row in rows.to_pylist():
                self._answers[TaskKey(row["taskset"], row["task_id"])] = row["answer"]
        return [self._answers.get(key) for key in keys]


def _row_prompts(table: pa.Table) -> list[str | None]:
    if "messages" in table.column_names:
        counts = (
            table["prompt_messages"].to_pylist()
            if "prompt_messages" in table.column_names
            else [None] * table.num_rows
        )
        return [
            spoken(json.loads(messages)[:count])
            for messages, count in zip(table["messages"].to_pylist(), counts, strict=True)
        ]
    if "prompt" in table.column_names:
        prompts: list[str | None] = table["prompt"].to_pylist()
        return prompts
    raise ValueError(
        f"the template wants {{prompt}}, but the rows have neither 'messages' nor 'prompt'; "
        f"they have {table.column_names}"
    )


def spoken(messages: Sequence[Mapping[str, object]]) -> str:
    """A conversation as text: one message as it is, several with their roles."""
    texts = [_text(message.get("content")) for message in messages]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"{m.get('role', '')}: {text}" for m, text in zip(messages, texts, strict=True))


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return "" if content is None else str(content)
