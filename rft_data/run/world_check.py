"""Whether an explorer could make its workflows: what is the user's own included."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from explorers.rewards.scoring import Rewards
from explorers.workflows.make import close_workflow, make_workflow
from rft_data.recipe.sections import ExplorerSection
from rft_data.recipe.workflow_args import PlayedWorkflow
from rft_data.run.programs import SandboxPlace, workflow_in_sandbox

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
