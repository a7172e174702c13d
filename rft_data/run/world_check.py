"""Whether an explorer could make its rewards and workflows: what is the user's own included."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from explorers.limits import recipe_limits
from explorers.rewards.registry import REWARDS
from explorers.rewards.scoring import Rewards, make_rewards
from explorers.workflows.make import close_workflow, make_workflow
from rft_data.recipe.sections import ExplorerSection
from rft_data.recipe.workflow_args import PlayedWorkflow
from rft_data.run.programs import SandboxPlace, workflow_in_sandbox

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_own_rewards(section: ExplorerSection) -> None:
    """Make the rewards that are the user's own, each alone, as an explorer would.

    Raises: RecipeError, UnknownComponentError.
    """
    components = [
        {"use": one.use, "args": one.args, "name": one.name or one.use}
        for one in section.reward
        if one.use not in REWARDS
    ]
    make_rewards(components, recipe_limits(section.limits, section.group_size)).close()


def check_workflow(
    section: ExplorerSection, played: PlayedWorkflow, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Make one workflow of a section, with a first environment and the certificate of its template.

    Args: tokenizer: the model's, where it is known.
    Raises: RecipeError, UnknownComponentError, MissingExtraError, SandboxError.
    """
    settings = workflow_in_sandbox(section, SandboxPlace(), played.model_dump())
    with closing(Rewards({}, {})) as none:
        close_workflow(make_workflow(settings, tokenizer, none))
