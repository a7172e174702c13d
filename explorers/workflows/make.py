"""Makes the workflow that a recipe names: a built-in by name, or what an import path leads to."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from explorers.environments.making import text_player
from explorers.environments.openenv_text import offers_tools
from explorers.rewards.scoring import Rewards
from explorers.workflows.environment import EnvironmentWorkflow
from explorers.workflows.function import FunctionWorkflow
from explorers.workflows.group_world import GroupWorld, group_world
from explorers.workflows.program import ProgramWorkflow
from explorers.workflows.recorded import WorldReward
from explorers.workflows.served import ServedWorkflow
from explorers.workflows.single_turn import SingleTurn
from explorers.workflows.tools import ToolsWorkflow
from explorers.workflows.verifiers import VerifiersWorkflow
from rft_data.core.engine import Engine
from rft_data.core.errors import RecipeError, RftError, RowError
from rft_data.core.lookup import lookup
from rft_data.core.rows import Experience, Task
from rft_data.core.workflow import RolloutContext, Workflow
from rft_data.tasks.verifiers_environment import MAKER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORKFLOWS: Mapping[str, Callable[..., Workflow]] = {
    "single_turn": SingleTurn,
    "function": FunctionWorkflow,
    "tools": ToolsWorkflow,
    "environment": EnvironmentWorkflow,
    "verifiers": VerifiersWorkflow,
    "program": ProgramWorkflow,
    "served": ServedWorkflow,
}
_FUNCTION, _TOOLS, _ENVIRONMENT = ("function", "play"), ("tools", "tools"), ("environment", "environment")
_VERIFIERS, _AGENT = ("verifiers", "environment"), ("program", "agent")
"""Built-ins that play something of the user's, and the argument that names it."""


class ChosenWorkflow:
    """The recipe's workflow, and those that tasks name instead of it."""

    def __init__(self, use: str, default: Workflow, named: Mapping[str, Workflow]) -> None:
        """`use`: the name of `default`, which a task may give too."""
        self._default = default
        self._named = {use: default, **named}

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout. Raises: RowError when the task names a workflow that there is not."""
        workflow = self._chosen(task)
        if workflow is None:
            raise RowError(
                f"the task asks for the workflow '{task.workflow}', the recipe has {sorted(self._named)}; "
                "add it to explorer.workflows."
            )
        return await workflow.run(task, engine, ctx)

    def waits_for_group(self, task: Task) -> bool:
        """Whether the workflow of this task does."""
        return self._comparing(task) is not None

    async def score_group(
        self, task: Task, group_id: str, members: Collection[int]
    ) -> Mapping[int, WorldReward]:
        """As the workflow of this task does it."""
        world = self._comparing(task)
        return {} if world is None else await world.score_group(task, group_id, members)

    def forget_group(self, task: Task, group_id: str) -> None:
        """As the workflow of this task does it."""
        if (world := self._comparing(task)) is not None:
            world.forget_group(task, group_id)

    def metrics(self) -> dict[str, float]:
        """The sums of what the workflows count."""
        found: Counter[str] = Counter()
        for workflow in self._all():
            found.update(workflow_metrics(workflow))
        return dict(found)

    def stored(self, rows: Sequence[Experience]) -> None:
        """Say so to all of them: each knows its own."""
        for workflow in self._all():
            workflow_stored(workflow, rows)

    @property
    def needs_texts(self) -> bool:
        """Whether one of them does."""
        return any(map(needs_texts, self._all()))

    def close(self) -> None:
        for workflow in self._all():
            close_workflow(workflow)

    def _chosen(self, task: Task) -> Workflow | None:
        return self._default if task.workflow is None else self._named.get(task.workflow)

    def _comparing(self, task: Task) -> GroupWorld | None:
        chosen = self._chosen(task)
        return None if chosen is None else group_world(chosen, task)

    def _all(self) -> list[Workflow]:
        others = [one for one in self._named.values() if one is not self._default]
        return [self._default, *others]


def make_workflows(
    settings: Mapping[str, object],
    others: Mapping[str, Mapping[str, object]],
    tokenizer: PreTrainedTokenizerBase | None,
    rewards: Rewards,
) -> Workflow:
    """The workflow of a recipe and those that its tasks may name.

    Raises: UnknownComponentError, MissingExtraError, RecipeError; all that was made is closed first.
    """
    with ExitStack() as undo:
        default = make_workflow(settings, tokenizer, rewards)
        undo.callback(close_workflow, default)
        named = {}
        for name, one in others.items():
            named[name] = make_workflow(one, tokenizer, rewards)
            undo.callback(close_workflow, named[name])
        undo.pop_all()
    return ChosenWorkflow(str(settings["use"]), default, named) if named else default


def make_workflow(
    settings: Mapping[str, object], tokenizer: PreTrainedTokenizerBase | None, rewards: Rewards
) -> Workflow:
    """Make the workflow that `settings["use"]` names, as `Class(tokenizer, rewards, **args)`.

    An import path may also lead to a coroutine function (of a model, or of a `client`), a class with tools, a
    `gymnasium.Env` or a client of OpenEnv: the built-in workflow for that plays it.
    Raises: UnknownComponentError; RecipeError when it cannot be built with `args`.
    """
    name, given = str(settings["use"]), settings.get("args") or {}
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"explorer.workflow.args is {given!r:.200}; wanted arguments by name, for example {{turns: 4}}."
        )
    args = dict(given)
    kind = lookup(name, WORKFLOWS, "workflow")
    if name not in WORKFLOWS and (player := _player(name, kind)):
        use, argument = player
        kind, args = WORKFLOWS[use], {argument: name, **args}
    try:
        built: Workflow = kind(tokenizer, rewards, **args)
    except RftError:
        raise
    except Exception as err:  # a workflow's constructor is user code
        raise RecipeError(
            f"workflow '{name}' cannot be built with the arguments {sorted(args)} ({type(err).__name__}: "
            f"{err}); correct explorer.workflow.args in the recipe."
        ) from err
    return built


def workflow_metrics(workflow: Workflow) -> dict[str, float]:
    """The counts of a workflow; empty where it has no `metrics`."""
    found: dict[str, float] = workflow.metrics() if hasattr(workflow, "metrics") else {}
    return found


def workflow_stored(workflow: Workflow, rows: Sequence[Experience]) -> None:
    """Say to a workflow that has a `stored` which rows of its rollouts are durable now."""
    if hasattr(workflow, "stored"):
        workflow.stored(rows)


def needs_texts(workflow: Workflow) -> bool:
    """Whether a workflow has vLLM's server over the engine, which then needs the model's tokenizer."""
    return bool(getattr(workflow, "needs_texts", False))


def close_workflow(workflow: Workflow) -> None:
    """Close a workflow that has a `close`."""
    if hasattr(workflow, "close"):
        workflow.close()


def _player(name: str, kind: object) -> tuple[str, str] | None:
    """The built-in that plays what an import path leads to; None for a workflow, which plays itself.

    Raises: RecipeError for a function that is no coroutine function.
    """
    if inspect.isfunction(kind):
        if kind.__name__ == MAKER:
            return _VERIFIERS
        return _AGENT if list(inspect.signature(kind).parameters)[1:2] == ["client"] else _FUNCTION
    if not inspect.isclass(kind):
        raise RecipeError(
            f"workflow '{name}' is a {type(kind).__name__}; wanted a workflow class, a coroutine function, a "
            "class with tools, a subclass of gymnasium.Env or a client of OpenEnv."
        )
    if _is_workflow(kind):
        return None
    return _TOOLS if text_player(kind) is None or offers_tools(kind) else _ENVIRONMENT


def _is_workflow(kind: type) -> bool:
    """Whether its `run` takes a task, an engine and a context; a tool may have that name too."""
    if not hasattr(kind, "run"):
        return False
    try:
        inspect.signature(kind.run).bind(None, "task", "engine", "context")
    except TypeError:
        return False
    return True
