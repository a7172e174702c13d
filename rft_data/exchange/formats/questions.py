"""Question and answer files: GSM8K (`question`, `answer`) and `problem`, `solution`.

A row is a task; its worked solution, when it has one, is an expert's experience of that task as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rft_data.core.chat import chat, one_text
from rft_data.core.errors import RowError
from rft_data.core.rows import Experience, Message, Task
from rft_data.core.words import RowSource
from rft_data.exchange.formats.records import (
    RESERVED,
    Choices,
    Format,
    Origin,
    Record,
    Row,
    extra_columns,
    imported_experience,
    text_cell,
    with_metadata,
)

MARK = "####"
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")
_GIVEN = f"{RESERVED}answer"
"""Metadata key: the answer, when the file has a column for it beside the solution."""


def marked_answer(solution: str) -> str | None:
    """The text after the last `####`, without thousands separators; None without that mark.

    Raises: RowError if no text follows the mark.
    """
    _, mark, answer = solution.rpartition(MARK)
    if not mark:
        return None
    answer = answer.strip()
    if not answer:
        raise RowError(f"nothing follows '{MARK}' in the answer")
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


def boxed_answer(solution: str) -> str | None:
    r"""The text in the last `\boxed{...}`; None without one, or when its braces do not close."""
    start = solution.rfind(r"\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len(r"\boxed")
    for place in range(begin, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[place], 0)
        if depth == 0:
            return solution[begin + 1 : place].strip() or None
    return None


def _prompt(row: Row, column: str) -> list[Message]:
    """The question of a row: its text as the user's message, or its messages as they are."""
    value = row.get(column)
    if isinstance(value, list):
        return chat(value, f"column '{column}'")
    return [{"role": "user", "content": text_cell(row, column)}]


def _records(
    origin: Origin, row: Row, prompt: list[Message], answer: str | None, solution: str | None
) -> Sequence[Record]:
    metadata = extra_columns(row, ("question", "answer", "problem", "solution"))
    task = Task(origin.taskset, tuple(prompt), answer, origin.split, metadata=metadata)
    records: list[Record] = [] if answer is None else [task]
    if solution is not None:
        given = {_GIVEN: answer} if row.get("answer") not in (None, "") else {}
        records.append(
            imported_experience(
                origin,
                [*prompt, {"role": "assistant", "content": solution}],
                len(prompt),
                source=RowSource.EXPERT,
                task_id=task.task_id,
                metadata={**metadata, **given},
            )
        )
    return records


def read_gsm8k(row: Row, origin: Origin) -> Sequence[Record]:
    """A task, and an expert's experience when the answer is a worked solution that ends in `#### 42`."""
    question, text = _prompt(row, "question"), text_cell(row, "answer")
    answer = marked_answer(text)
    if answer is None:
        return _records(origin, {**row, "answer": None}, question, text.strip(), None)
    return _records(origin, {**row, "answer": None}, question, answer, text)


def read_problem(row: Row, origin: Origin) -> Sequence[Record]:
    r"""A task with the answer given or found in the solution (`\boxed{}`, `####`); and the solution.

    A solution in which no answer is found becomes an experience only, because no reward could score the task.
    """
    problem = _prompt(row, "problem")
    solution = None if row.get("solution") in (None, "") else text_cell(row, "solution")
    if row.get("answer") not in (None, ""):
        return _records(origin, row, problem, text_cell(row, "answer").strip(), solution)
    if solution is None:
        raise RowError("columns 'solution' and 'answer' are both empty")
    return _records(origin, row, problem, boxed_answer(solution) or marked_answer(solution), solution)


def write_gsm8k(record: Experience | Task, _: Choices) -> Row:
    """The solution of an experience, or the reference answer of a task."""
    if isinstance(record, Task):
        question, answer = one_text(record.messages, "user", "the prompt"), record.answer
        if answer is None:
            raise RowError("the task has no reference answer")
    else:
        question, answer = _question(record), _solution(record)
        if MARK not in answer:
            raise RowError(
                f"the completion has no '{MARK} answer' line; it would be read as the answer itself"
            )
    return with_metadata({"question": question, "answer": answer}, record.metadata)


def write_problem(record: Experience | Task, _: Choices) -> Row:
    """Problem and solution, or problem and answer for a task."""
    if isinstance(record, Task):
        if record.answer is None:
            raise RowError("the task has no reference answer")
        row: Row = {"problem": one_text(record.messages, "user", "the prompt"), "answer": record.answer}
    else:
        row = {"problem": _question(record), "solution": _solution(record)}
        if _GIVEN in record.metadata:
            row["answer"] = record.metadata[_GIVEN]
    return with_metadata(row, record.metadata)


def _question(record: Experience) -> str:
    return one_text(record.messages[: record.prompt_messages], "user", "the prompt")


def _solution(record: Experience) -> str:
    return one_text(record.messages[record.prompt_messages :], "assistant", "the completion")


GSM8K = Format(
    "gsm8k",
    ("question (text or messages), answer (worked solution ending in '#### 42', or the answer alone)",),
    (frozenset({"question", "answer"}),),
    read_gsm8k,
    write_gsm8k,
    ("experiences", "tasks"),
    flat=True,
)
PROBLEM_SOLUTION = Format(
    "problem-solution",
    ("problem, solution and optionally answer", "problem, answer"),
    (frozenset({"problem", "solution"}), frozenset({"problem", "answer"})),
    read_problem,
    write_problem,
    ("experiences", "tasks"),
    flat=True,
)
