"""The task of a recipe that is looked at, and how the model will see it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explorers.conversations.opening import Opening
from explorers.conversations.template import ChatTemplate
from explorers.role import load_tokenizer
from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.images import for_template, shows_images
from rft_data.core.rows import Message, Task
from rft_data.recipe.kinds import with_explorers
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.recipe.recipe import Recipe, TasksRecipe
from rft_data.run import build

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a task, as a model gets it."""

    messages: Sequence[Message]
    """The messages, with the workflow's system prompt and examples."""
    text: str = ""
    """The chat template's text; empty where an endpoint renders the messages."""
    ids: Sequence[int] = ()
    tools: Sequence[Mapping[str, Any]] | None = None
    """The tools of the task that are offered with it; None: none."""


def explored(recipe: Recipe) -> ExplorerRecipe:
    """The recipe, if it has explorers. Raises: RecipeError."""
    playing = with_explorers(recipe)
    if playing is None:
        raise RecipeError(
            f"recipe '{recipe.name}' has mode '{recipe.mode}', which plays no task; give one of mode online, "
            "explore or eval."
        )
    return playing


def chosen_task(recipe: TasksRecipe, which: str | None) -> Task:
    """The task of a recipe with an id, or at a place (from 0), or the first.

    Raises: RecipeError when there is none; what reading the tasks raises.
    """
    return chosen_from(recipe_tasks(recipe), which)


def recipe_tasks(recipe: TasksRecipe) -> list[Task]:
    """Every task of a recipe, in order. Raises: what reading them raises."""
    with ExitStack() as stack:
        there = Path(recipe.buffer.uri).is_dir()
        buffer = stack.enter_context(Buffer(recipe.buffer.uri, read_only=True)) if there else None
        return [task for one in recipe.tasks for task in build.taskset_tasks(one, buffer, recipe.name)]


def chosen_from(tasks: Sequence[Task], which: str | None) -> Task:
    """The task with an id, or the task at a place (from 0), or the first. Raises: RecipeError."""
    found = [task for task in tasks if task.task_id == which]
    if not found and (which is None or which.isdecimal()):
        found = list(tasks[int(which or 0) :])
    if not found:
        raise RecipeError(
            f"the recipe has no task '{which}'; give an id, or a place from 0 to {len(tasks) - 1}."
            if tasks
            else "the recipe's tasksets hold no task."
        )
    return found[0]


def recipe_tokenizer(recipe: ExplorerRecipe) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the model that plays; None where an endpoint has it.

    Raises: MissingFileError, and what loading it raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        return played_tokenizer(recipe, played_model(recipe, Path(folder)))


def seen(recipe: ExplorerRecipe, tokenizer: PreTrainedTokenizerBase | None, task: Task) -> Prompt:
    """The task with its workflow's system prompt and examples, rendered where there is a tokenizer.

    Raises: RecipeError for a prompt that the chat template cannot render.
    """
    workflow = recipe.explorer.workflows.get(task.workflow or "", recipe.explorer.workflow)
    args: dict[str, Any] = workflow.args
    messages = Opening(args.get("system"), args.get("examples")).before(task.messages)
    tools = task.tools if workflow.use == "single_turn" else None
    if tokenizer is None:
        return Prompt(messages, tools=tools)
    from jinja2.exceptions import TemplateError

    try:
        ids = _ids(tokenizer, messages, tools, args.get("chat_template_kwargs") or {})
    except (TemplateError, TypeError, ValueError) as err:
        raise RecipeError(_not_rendered(recipe, task, messages, err)) from err
    return Prompt(messages, tokenizer.decode(ids), ids, tools)


def _ids(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    arguments: Mapping[str, Any],
) -> list[int]:
    """The prompt as the workflow `single_turn` makes it."""
    if tools:
        chat = ChatTemplate(tokenizer, arguments)
        chat.need_tools(messages, tools)
        return chat.prompt(messages, tools)
    ids: list[int] = tokenizer.apply_chat_template(
        for_template(messages), add_generation_prompt=True, return_dict=False, **arguments
    )
    return ids


def _not_rendered(recipe: ExplorerRecipe, task: Task, messages: Sequence[Message], err: Exception) -> str:
    model = recipe.played.path or "model.build"
    said = str(err) if isinstance(err, RftError) else f"{type(err).__name__}: {err}"
    what, mend = "the prompt", f"`rft debug template {model}` says what it can render"
    if shows_images(messages):
        what, mend = "a prompt with images", "give a vision-language model, or tasks without images"
    return (
        f"taskset '{task.taskset}': the chat template of '{model}' cannot render {what} of task "
        f"'{task.task_id}' ({said.rstrip('.')}); {mend}."
    )


def played_model(recipe: ExplorerRecipe, folder: Path) -> str:
    """Folder of the model that plays, or its name at an endpoint; one that is built is built in `folder`."""
    if recipe.explorer.base_url:
        return str(recipe.played.path)
    if recipe.several_models:
        return str(build.model_folders(str(recipe.played.path))[0])
    return str(build.model_folder(recipe.played, folder, recipe.seed))


def played_tokenizer(recipe: ExplorerRecipe, model: str) -> PreTrainedTokenizerBase | None:
    """The model's tokenizer; None where an endpoint has it."""
    return None if recipe.explorer.base_url else load_tokenizer(model)
