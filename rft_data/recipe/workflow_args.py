"""Names of the arguments that the built-in workflows take, checked without importing them.

A test compares them with the constructors. Those of workflows of your own are checked when a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from rft_data.core.lookup import suggest
from rft_data.recipe.names import WORKFLOWS, known_name
from rft_data.recipe.running import Component

_PROMPT = ("system", "examples", "chat_template_kwargs")
_CONVERSATION = (*_PROMPT, "template", "hidden_tools", "budget")
_POOLED = (*_CONVERSATION, "turns", "call_deadline_s", "pool")
WORKFLOW_ARGS: Mapping[str, tuple[str, ...]] = {
    "single_turn": _PROMPT,
    "function": ("play", "args", *_CONVERSATION),
    "tools": ("tools", "args", *_POOLED),
    "environment": ("environment", "args", "actions", "pattern", "invalid_reward", "shape", *_POOLED),
    "verifiers": ("environment", "args", *_CONVERSATION),
    "served": ("token", "host", "port", "idle_s", "guests", "alike", "server", *_CONVERSATION),
    "program": ("command", "agent", "args", "environment", "limits", "server", *_CONVERSATION),
}
"""The arguments of each in `explorer.workflow.args`."""
NEEDED_ARGS: Mapping[str, str] = {
    "function": "play",
    "tools": "tools",
    "environment": "environment",
    "verifiers": "environment",
    "served": "token",
}
"""The argument without which one cannot be made."""


def known_arguments(workflow: Component) -> Component:
    """A workflow of the recipe, if it is known and, where it is built in, takes the given arguments.

    Raises: ValueError.
    """
    known_name("workflow", workflow.use, WORKFLOWS)
    known = WORKFLOW_ARGS.get(workflow.use)
    if known is None:
        return workflow
    for name in workflow.args:
        if name not in known:
            raise ValueError(
                f"the workflow '{workflow.use}' takes no argument '{name}';{suggest(name, known)} "
                f"It takes: {', '.join(known)}."
            )
    needed = NEEDED_ARGS.get(workflow.use)
    if needed is not None and needed not in workflow.args:
        raise ValueError(f"the workflow '{workflow.use}' needs the argument '{needed}' in 'args'")
    return workflow


PlayedWorkflow = Annotated[Component, AfterValidator(known_arguments)]
"""How tasks are played: a built-in with arguments that it takes, or a workflow of one's own."""
