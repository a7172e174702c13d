"""Whether rewards can score a recipe's first tasks; the user's own are made, and called once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from explorers.limits import recipe_limits
from explorers.rewards.contract import Subject, broke_contract
from explorers.rewards.registry import REWARDS
from explorers.rewards.scoring import Rewards, bare_trajectory, make_rewards
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.core.text import shown
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from rft_data.recipe.rewards import RewardComponent
from rft_data.recipe.sections import ExplorerSection

READ_ANSWERS = ("exact_answer", "math_verify", "number", "multiple_choice")
"""Built-in rewards that compare a completion with the task's answer."""
_SHORT_TEXT = "An answer."
"""The completion where the task has no answer."""
_WIDTH = 60


def check_own_reward(section: ExplorerSection, component: RewardComponent, tasks: Iterable[Task]) -> None:
    """Make a reward of the user's in a child process, and call it once, within the recipe's deadline.

    Args: tasks: the first that it scores is the one; its answer is the completion. Without any it is made.
    Built-in rewards, which may ask other hosts, are left alone.
    Raises: RecipeError, UnknownComponentError.
    """
    if component.use in REWARDS:
        return
    name = component.stored_as
    limits = replace(recipe_limits(section.limits, section.group_size), retries=0, reward_processes=1)
    with closing(
        make_rewards([{"use": component.use, "args": component.args, "name": name}], limits)
    ) as made:
        if scored := scored_tasks(component, tasks):
            _call(made, component, scored[0], members=section.group_size)


def check_answers(rewards: Iterable[RewardComponent], tasks: Sequence[Task]) -> None:
    """See that some of a taskset's first tasks have the answer that a reward compares with.

    Raises: RecipeError.
    """
    for component in rewards:
        scored = scored_tasks(component, tasks)
        if component.use in READ_ANSWERS and scored and all(one.answer is None for one in scored):
            raise RecipeError(
                f"reward '{component.use}' compares with the task's answer, and none of the first "
                f"{len(scored)} tasks has one; write 'answer: COLUMN', or take another reward."
            )


def scored_tasks(component: RewardComponent, tasks: Iterable[Task]) -> list[Task]:
    """Those whose completions the component scores: a task may name its reward, a component its tasksets."""
    return [one for one in tasks if _scores(component, one)]


def _scores(component: RewardComponent, task: Task) -> bool:
    if task.reward is not None:
        return task.reward == component.stored_as
    return component.tasksets is None or task.taskset in component.tasksets


def _call(made: Rewards, component: RewardComponent, task: Task, *, members: int) -> None:
    """Raises: RecipeError for a value that no reward may return, an error or a passed deadline."""
    name, completion = component.stored_as, task.answer or _SHORT_TEXT
    subject = made.kind(name).subject
    judged = [bare_trajectory(task, completion)] * members if subject is Subject.GROUP else completion
    found = asyncio.run(made.ask(name, task, judged)).outcome
    if not isinstance(found, Unscored):
        return
    late = found.cause == UnscoredCause.TIMEOUT
    # a rollout that was never played lacks what a reward of trajectories may look at
    raised = subject is not Subject.COMPLETION and found.reason.startswith("raised ")
    if late or (broke_contract(found) and not raised):
        raise RecipeError(
            f"reward '{component.use}', called with the task {task.taskset}/{task.task_id} and the "
            f"completion {shown(repr(completion), _WIDTH)}, {found.reason}; correct its code."
        )
