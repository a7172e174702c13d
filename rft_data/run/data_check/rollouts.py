"""Checks the rollouts that a data recipe would score: which tasks they answer, and fields that lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rft_data.core.chat import message_text
from rft_data.core.errors import RftError
from rft_data.core.rows import Task
from rft_data.recipe.modes import DataRecipe
from rft_data.recipe.tasksets import Rollouts
from rft_data.run.data_check.prompts import measured
from rft_data.run.data_check.report import Example, TasksetReport
from rft_data.run.score_file import Found, task_completions
from rft_data.run.taskset_rows import table_name

_SHOWN = 3


def check_rollouts(recipe: DataRecipe, tasks: Sequence[Task]) -> list[TasksetReport]:
    """A report on each source of rollouts. Args: tasks: those that the recipe reads."""
    return [_checked(section, tasks) for section in recipe.rollouts]


def _checked(section: Rollouts, tasks: Sequence[Task]) -> TasksetReport:
    report = TasksetReport(section.name, table_name(section.source), kind="rollouts", stored={})
    fields = ", ".join(repr(one.text) for one in section.completions)
    report.read_as = f"prompt: {section.prompt!r}, completions: {fields}"
    outcome: Counter[str] = Counter()
    try:
        found = list(task_completions(section, tasks, outcome))
    except (RftError, OSError) as err:
        report.problems.append(str(err))
        return report
    report.rows = (len(found) + outcome["no_task"]) // len(section.completions)
    report.stored = {"experiences": len(found)}
    report.examples = [_example(one) for one in found[:_SHOWN]]
    report.lengths = measured("characters", [len(one.text) for one in found], None) if found else None
    lost = outcome["no_task"] // len(section.completions)
    if not found:
        report.problems.append(
            f"none of its {lost} rows asks what a task of '{section.taskset}' asks: 'prompt' names the field "
            "with the question, as the task has it"
        )
    elif lost:
        report.warnings.append(f"{lost} rows answer no task of '{section.taskset}'; they are not stored")
    return report


def _example(found: Found) -> Example:
    asked = "\n".join(f"[{one['role']}] {message_text(one)}" for one in found.task.messages)
    return Example(asked, None, found.text, [] if found.label is None else [f"label {found.label}"])
