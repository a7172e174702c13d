"""Columns of tasks that a recipe's rewards and workflows need, and tasks that lack them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from explorers.rewards.unit_tests import unit_tests
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.recipe.kinds import with_explorers
from rft_data.recipe.recipe import Recipe
from rft_data.run.reward_check import READ_ANSWERS, scored_tasks
from rft_data.run.task_setup import check_known_code


def reward_problems(recipe: Recipe | None, tasks: Sequence[Task]) -> Iterator[str]:
    """The missing parts of the tasks, and the lines to write for them."""
    playing = None if recipe is None else with_explorers(recipe)
    if playing is None:
        return
    try:
        check_known_code(playing.explorer, tasks)
    except RecipeError as err:
        yield str(err)
    for component in playing.explorer.reward:
        scored = scored_tasks(component, tasks)
        if component.use in READ_ANSWERS:
            if lacking := sum(task.answer is None for task in scored):
                yield (
                    f"reward '{component.use}' compares with the task's answer, and {lacking} of "
                    f"{len(scored)} tasks have none; write 'answer: COLUMN' in the taskset, or take another "
                    "reward"
                )
        elif component.use == "code_tests":
            yield from _untested(scored, str(component.args.get("language", "python")))


def _untested(tasks: Sequence[Task], language: str) -> Iterator[str]:
    wrong = []
    for task in tasks:
        try:
            unit_tests(task, language)
        except ValueError as err:
            wrong.append(str(err))
    if wrong:
        yield f"reward 'code_tests' finds no tests in {len(wrong)} of {len(tasks)} tasks: {wrong[0]}"
