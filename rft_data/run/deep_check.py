"""Further checks of `rft recipe validate --deep`: they need the libraries, the data and the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from explorers.role import load_tokenizer
from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.rows import Task
from rft_data.recipe.kinds import (
    that_measures,
    with_explorers,
    with_model,
    with_operators,
    with_reinforcement,
    with_tasks,
)
from rft_data.recipe.leaves import dotted
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.presets import written_place
from rft_data.recipe.recipe import Recipe, RunRecipe, TasksRecipe
from rft_data.recipe.section import Loc
from rft_data.recipe.task_sources import StoredTasks
from rft_data.recipe.tasksets import Taskset
from rft_data.recipe.workflow_args import PlayedWorkflow
from rft_data.run import build, checks
from rft_data.run.data_check.fed import unfed
from rft_data.run.data_check.imported import import_problems
from rft_data.run.data_check.report import DataReport
from rft_data.run.debug.first_prompts import FirstPrompts
from rft_data.run.engine_check import engine_problems, gpu_problems
from rft_data.run.hub_reach import hub_asked_once
from rft_data.run.image_checks import check_recipe_images
from rft_data.run.reward_check import check_answers, check_own_reward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN = 64
"""Tasks of each taskset whose prompts are rendered."""
Made = TypeVar("Made")
Attempt: TypeAlias = Callable[[Callable[[], list[Task]]], list[Task] | None]


def deep_problems(recipe: Recipe) -> list[Problem]:
    """Every part of a recipe that cannot be built here; no engine is started and nothing is written.

    A problem is at the key that it is about where a check knows it, else at the recipe.
    """
    build.prepare_process()
    with hub_asked_once(recipe) as silent:
        return [*(Problem((), one) for one in silent), *_part_problems(recipe)]


def as_written(problem: Problem, recipe: Recipe, tree: Mapping[str, object]) -> Problem:
    """A problem of a recipe, at its place in the tree that was written: a preset may have moved operators."""
    if problem.loc[:1] != ("experience_ops",) or len(problem.loc) == 1:
        return problem
    judging, measuring = with_operators(recipe), that_measures(recipe)
    built = judging.experience_ops if judging else build.shaping_operators(measuring) if measuring else []
    key, place, *inside = problem.loc
    found = written_place(tree.get("experience_ops"), built, int(place))
    return Problem((key,) if found is None else (key, found, *inside), problem.message)


def _part_problems(recipe: Recipe) -> list[Problem]:
    found = _Problems()
    for loc, check in _part_checks(recipe):
        found.attempt(loc, check)
    if (run := with_model(recipe)) is not None:
        found.list += _import_problems(run) if run.imports else unfed(run, [])
        found.list += gpu_problems(run)
    tasksets: list[list[Task]] = []
    if (asking := with_tasks(recipe)) is not None:
        for i, section in enumerate(asking.tasks):
            tasksets.append(_first_tasks(section, asking, partial(found.attempt, ("tasks", i))))
    if (playing := with_explorers(recipe)) is not None:
        found.list += engine_problems(playing)
        _check_play(playing, tasksets, found)
    return found.list


def _check_play(recipe: ExplorerRecipe, tasksets: Sequence[list[Task]], found: _Problems) -> None:
    """Make the workflows, with the tokenizer where there is one model, and render the prompts of tasks.

    The user's own rewards are made, and called once.
    """
    section = recipe.explorer
    tasks = [task for one in tasksets for task in one]
    for i, reward in enumerate(section.reward):
        found.attempt(("explorer", "reward", i), partial(check_own_reward, section, reward, tasks))
    for i, some in enumerate(tasksets):
        found.attempt(("tasks", i), partial(check_answers, section.reward, some))
    model, tokenizer = recipe.played.path, None
    if section.base_url is None and model and not recipe.several_models:
        tokenizer = found.attempt(("model", "path"), partial(_tokenizer, model))
    renders = found.attempt(("model", "path"), partial(_renders, recipe, tokenizer, tasks))
    workflows: dict[Loc, PlayedWorkflow] = {("explorer", "workflow"): section.workflow}
    workflows |= {("explorer", "workflows", name): one for name, one in section.workflows.items()}
    with closing(FirstPrompts(recipe, tokenizer)) as prompts:
        made = [found.attempt(loc, partial(prompts.make, one)) for loc, one in workflows.items()]
        for i, some in enumerate(tasksets):
            images = found.attempt(("tasks", i), partial(_images_are_taken, recipe, some))
            if some and images and renders and None not in made:
                found.attempt(("tasks", i), partial(_check_prompts, recipe, prompts, some))


def _images_are_taken(recipe: ExplorerRecipe, tasks: list[Task]) -> bool:
    """True. Raises: RecipeError, RowError for images that model or engine would not be shown."""
    check_recipe_images(tasks, recipe)
    return True


def _import_problems(recipe: RunRecipe) -> Iterator[Problem]:
    """Imports that cannot be read, and rows that no stage can train on."""
    report = DataReport([])
    yield from import_problems(recipe, recipe.imports, report)
    for i, one in enumerate(report.tasksets):
        yield from (Problem(("imports", i), said) for said in one.problems)


class _Problems:
    """The messages of the checks that failed; each text once."""

    def __init__(self) -> None:
        self.list: list[Problem] = []

    def attempt(self, loc: Loc, check: Callable[[], Made]) -> Made | None:
        """The result of a check; None when it fails. Args: loc: what it is about."""
        try:
            return check()
        except (RftError, OSError) as err:
            known = {one.message for one in self.list}
            self.list += [one for one in _apart(loc, str(err)) if one.message not in known]
            return None


def _apart(loc: Loc, text: str) -> list[Problem]:
    """The messages of a check, without the key; of a list of operators each mistake at its entry."""
    _, *of_entries = re.split(rf"^ *{loc[-1]}\[(\d+)\][:.] ?", text, flags=re.MULTILINE) if loc else [text]
    if of_entries:
        entries = zip(of_entries[::2], of_entries[1::2], strict=True)
        return [Problem((*loc, int(number)), said.strip()) for number, said in entries]
    return [Problem(loc, text.removeprefix(f"{dotted(loc)}: "))]


def _part_checks(recipe: Recipe) -> Iterator[tuple[Loc, Callable[[], object]]]:
    """Each check, and the key that it is about."""
    if (run := with_model(recipe)) is not None:
        for i, stage in enumerate(run.offline_stages):  # before the one that trains by reinforcement
            yield ("stages", i), partial(checks.check_offline_stage, run, stage)
    if (training := with_reinforcement(recipe)) is not None:
        last = len(training.offline_stages)
        yield ("stages", last), partial(checks.check_rl_stage, training, training.rl)
    if (judging := with_operators(recipe)) is not None:
        yield ("experience_ops",), partial(_build_operators, build.experience_pipeline, judging)
    if (measuring := that_measures(recipe)) is not None:
        yield ("experience_ops",), partial(_build_operators, build.shaping_pipeline, measuring)
    if (playing := with_explorers(recipe)) is not None:
        for i, reward in enumerate(playing.explorer.reward):
            built = partial(checks.check_explorer, playing.explorer, [reward.model_dump()])
            yield ("explorer", "reward", i), built
    if (asking := with_tasks(recipe)) is not None and asking.task_ops:
        yield ("task_ops",), partial(build.task_pipeline, asking, asking.task_ops, "task_ops", None)


def _build_operators(make: Callable[[Made, Buffer], object], recipe: Made) -> None:
    """Build `experience_ops`, with an empty buffer for those that read stored rows. Raises: RecipeError."""
    with TemporaryDirectory() as folder, Buffer(folder) as empty:
        make(recipe, empty)


def _first_tasks(section: Taskset, recipe: TasksRecipe, attempt: Attempt) -> list[Task]:
    """The first tasks of a taskset; those of a buffer where it is there already."""
    if not isinstance(section.source, StoredTasks):
        tasks = attempt(partial(_some_tasks, section))
    elif any(one.taskset == section.name for one in getattr(recipe, "imports", [])):
        return []  # the run's start brings them
    elif recipe.buffer.is_hub or not Path(recipe.buffer.uri).is_dir():
        return []
    else:
        with Buffer(recipe.buffer.uri, read_only=True) as buffer:
            tasks = attempt(partial(build.taskset_tasks, section, buffer))
    return list(islice(tasks or [], _SHOWN))


def _some_tasks(section: Taskset) -> list[Task]:
    """The tasks of a source. Raises: RecipeError for one that gives none."""
    tasks = build.taskset_tasks(section)
    if not tasks:
        raise RecipeError("it gives no tasks; look at the file, and at 'where' and 'limit' of the source.")
    return tasks


def _check_prompts(recipe: ExplorerRecipe, prompts: FirstPrompts, tasks: list[Task]) -> None:
    """Render the prompts of a taskset. Raises: RecipeError for those that leave no room for an answer."""
    lengths = [len(prompts.prompt(task).ids) for task in prompts.some(tasks)]
    room = recipe.explorer.engine.max_model_len - recipe.explorer.max_tokens
    if too_long := sum(length > room for length in lengths):
        raise RecipeError(
            f"{too_long} of the first {len(lengths)} prompts have more than {room} tokens (the longest "
            f"{max(lengths)}), the room that explorer.max_tokens {recipe.explorer.max_tokens} leaves in "
            f"explorer.engine.max_model_len {recipe.explorer.engine.max_model_len}; raise the latter."
        )


def _renders(recipe: ExplorerRecipe, tokenizer: PreTrainedTokenizerBase | None, tasks: list[Task]) -> bool:
    """Whether prompts are rendered here. Raises: RecipeError for a tokenizer without a chat template."""
    if tokenizer is None or not tasks:
        return False
    if tokenizer.chat_template is None and recipe.explorer.workflow.use == "single_turn":
        raise RecipeError(
            f"model.path: the tokenizer of '{recipe.played.path}' has no chat template, and tasks are "
            "chat messages; take an instruction-tuned model, or put a chat_template.jinja into its folder."
        )
    return True


def _tokenizer(model: str) -> PreTrainedTokenizerBase:
    try:
        return load_tokenizer(model)
    except RftError:
        raise
    except (OSError, ValueError) as err:
        first = str(err).strip().partition("\n")[0]
        raise RecipeError(f"model.path: the tokenizer of '{model}' cannot be loaded: {first}") from err
