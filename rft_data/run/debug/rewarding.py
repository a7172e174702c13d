"""A recipe's reward for one completion of one task."""

from __future__ import annotations

import asyncio
from contextlib import closing

from explorers.limits import recipe_limits
from explorers.rewards.composition import RewardColumns
from explorers.rewards.scoring import make_rewards
from rft_data.core.rows import Task
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.run.programs import SandboxPlace, rewards_in_sandbox


def rewarded(recipe: ExplorerRecipe, task: Task, completion: str) -> RewardColumns:
    """The reward columns of a row with this completion: `reward`, `reward_parts`, `unscored_reason`.

    Raises: what building a reward raises; SandboxError.
    """
    section = recipe.explorer
    limits = recipe_limits(section.limits, section.group_size)
    with closing(make_rewards(rewards_in_sandbox(section, SandboxPlace()), limits)) as rewards:
        return asyncio.run(rewards.score(task, completion))
