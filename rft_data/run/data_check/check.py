"""Reads tasks as a run would, and finds what keeps them from feeding one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from rft_data.buffer import Buffer
from rft_data.core.chat import message_text
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.heldout import question
from rft_data.core.rows import Task
from rft_data.core.words import Split
from rft_data.exchange.formats.families import recognised
from rft_data.recipe.kinds import that_cleans_data, with_model, with_operators, with_tasks
from rft_data.recipe.named_source import named_source, stored_source
from rft_data.recipe.recipe import Recipe, TasksRecipe
from rft_data.recipe.task_sources import AnyTable, StoredTasks
from rft_data.recipe.tasksets import Taskset
from rft_data.run import build
from rft_data.run.data_check.columns import columns_in, kept_unseen, possible_prompts
from rft_data.run.data_check.imported import check_imports, named_import
from rft_data.run.data_check.prompts import PromptView
from rft_data.run.data_check.report import DataReport, TasksetReport
from rft_data.run.data_check.rewards import reward_problems
from rft_data.run.data_check.rollouts import check_rollouts
from rft_data.run.imports import import_sources
from rft_data.run.taskset_rows import LOOKED_AT, table_name, table_rows, table_tasks

_SHOWN = 3


def check_recipe_data(recipe: Recipe) -> DataReport:
    """Check all tasksets and imports of a recipe. Raises: RecipeError for one that has neither."""
    asking, run = with_tasks(recipe), with_model(recipe)
    report = DataReport([]) if asking is None else _check_tasks(asking)
    if run is not None and run.imports:
        played = {one.name for one in asking.tasks} if asking is not None else set()
        if other := [one for one in run.imports if one.taskset not in played]:
            imported = check_imports(run, other)
            report.tasksets += imported.tasksets
            report.problems += imported.problems
    elif asking is None:
        raise RecipeError(
            f"recipe '{recipe.name}' reads no tasks and imports nothing: it trains on what the buffer "
            f"{recipe.buffer.uri} holds. rft buffer info shows that, rft recipe explain counts what its "
            "stages would take of it."
        )
    return report


def _check_tasks(recipe: TasksRecipe) -> DataReport:
    read = [_read(section, recipe) for section in recipe.tasks]
    report = _judged(read, [], recipe)
    every = [task for _, tasks in read for task in tasks]
    if with_operators(recipe) is not None and every and all(task.split == Split.HELDOUT for task in every):
        report.problems.append("every task is held out, and none is left to train on; lower 'heldout'")
    if (data := that_cleans_data(recipe)) is not None:
        report.tasksets += check_rollouts(data, every)
    return report


def check_source(
    text: str, columns: Mapping[str, str] | None = None, recipe: Recipe | None = None
) -> DataReport:
    """Check a source of tasks; for a recipe that reads none, of answers and pairs that it would import.

    Args: columns: or templates, by the names of `ImportColumns`; of tasks, `completion` is the answer. What
        is not named is recognised. recipe: whose model, lengths, rewards, held-out tasks or stages it is
        checked against.
    Raises: RecipeError for columns that cannot be; what a buffer raises that cannot be opened.
    """
    asking, run = (None, None) if recipe is None else (with_tasks(recipe), with_model(recipe))
    given = dict(columns or {})
    if asking is not None or run is None:
        if {"chosen", "rejected", "label"} & given.keys():
            raise RecipeError(
                "--chosen, --rejected and --label are columns of answers and pairs, which a recipe without "
                "tasks would import; tasks have --prompt and --answer."
            )
        return _check_named(text, given.get("prompt"), given.get("completion"), asking)
    section = named_import(text, given)
    report = check_imports(run, [section])
    report.tasksets[0].write = json.dumps(section.model_dump(mode="json", exclude_unset=True))
    return report


def _check_named(text: str, prompt: str | None, answer: str | None, recipe: TasksRecipe | None) -> DataReport:
    """Check a file, dataset, generator, function, or the tasksets of a buffer. Args, Raises: as above."""
    heldout = max((one.heldout for one in recipe.tasks if one.heldout < 1), default=0.0) if recipe else 0.0
    beside = [task for one in recipe.tasks for task in _read(one, recipe)[1]] if recipe else []
    if (stored := stored_source(text)) is not None:
        if prompt is not None or answer is not None:
            raise RecipeError("stored tasks have prompt and answer; leave out --prompt and --answer.")
        return _judged(list(_in_buffer(*stored, heldout)), beside, recipe)
    section = named_source(text, prompt=prompt, answer=answer, heldout=heldout)
    found, tasks = _read(section, recipe)
    if tasks:
        columns = {"prompt", "answer"} if section.prompt is None else set()
        given = section.model_dump(mode="json", exclude_unset=True, exclude={"heldout", *columns})
        found.write = json.dumps(given)
    return _judged([(found, tasks)], beside, recipe)


def _in_buffer(folder: Path, taskset: str, heldout: float) -> Iterator[tuple[TasksetReport, list[Task]]]:
    """The stored tasks of a taskset, or of every one that the buffer has."""
    with Buffer(folder, read_only=True) as buffer:
        names = (
            [taskset] if taskset else sorted(set(buffer.read("tasks", ["taskset"])["taskset"].to_pylist()))
        )
        if not names:
            raise RecipeError(f"{folder} is a buffer without tasks; rft buffer import brings some in.")
        for name in names:
            section = Taskset.model_validate({"name": name, "source": {"use": "stored"}, "heldout": heldout})
            found, tasks = _read(section, None, buffer)
            if tasks:
                found.write = json.dumps(section.model_dump(mode="json", include={"name", "source"}))
            yield found, tasks


def _read(
    section: Taskset, recipe: TasksRecipe | None, buffer: Buffer | None = None
) -> tuple[TasksetReport, list[Task]]:
    """Facts about a taskset: counts and columns, and its distinct tasks.

    Args: buffer: that has it, where it is stored; None: the recipe's.
    """
    report = TasksetReport(section.name, str(section.source.use))
    try:
        if isinstance(section.source, AnyTable):
            tasks = _table(section, report)
        else:
            tasks = _other(section, recipe) if buffer is None else build.taskset_tasks(section, buffer)
    except (RftError, OSError) as err:
        report.problems.append(str(err) + _prompt_hint(section, report))
        return report, []
    report.rows = report.rows or len(tasks)
    distinct = list({task.task_id: task for task in tasks}.values())
    report.tasks = len(distinct)
    report.duplicates = len(tasks) - len(distinct)
    report.heldout = sum(task.split == Split.HELDOUT for task in distinct)
    report.answers = sum(task.answer is not None for task in distinct)
    report.warnings += kept_unseen(section, distinct)
    report.same_prompt = len(distinct) - len({_asked(task) for task in distinct})
    if not tasks:
        report.problems.append(
            "it gives no tasks; look at the file, and at 'where' and 'limit' of the source"
        )
    return report, distinct


def _table(section: Taskset, report: TasksetReport) -> list[Task]:
    source = section.source
    assert isinstance(source, AnyTable)  # noqa: S101
    report.source = table_name(source)
    rows = list(table_rows(source))
    report.rows, report.columns = len(rows), columns_in([row for _, row in rows])
    if section.prompt is not None:
        answer = "no answer" if section.answer is None else f"answer: {section.answer!r}"
        report.read_as = f"prompt: {section.prompt!r}, {answer}"
    elif rows:
        chosen = recognised([row for _, row in rows[:LOOKED_AT]], report.source)
        report.read_as = f"recognised as {chosen.name} ({' | '.join(chosen.shapes)})"
    return table_tasks(section, source, rows)


def _other(section: Taskset, recipe: TasksRecipe | None) -> list[Task]:
    """Tasks of a generator, of the recipe's buffer, or of what the run will import."""
    with ExitStack() as stack:
        if recipe is None or not isinstance(section.source, StoredTasks):
            return build.taskset_tasks(section)
        return build.taskset_tasks(section, _stored(section.name, recipe, stack))


def _stored(taskset: str, recipe: TasksRecipe, stack: ExitStack) -> Buffer:
    """A buffer with the tasks of a taskset: the recipe's, or one for now with what its run imports."""
    imports = [one for one in getattr(recipe, "imports", []) if one.taskset == taskset]
    if imports:
        buffer = stack.enter_context(Buffer(stack.enter_context(TemporaryDirectory())))
        import_sources(imports, buffer)
        return buffer
    if recipe.buffer.is_hub or not Path(recipe.buffer.uri).is_dir():
        raise RecipeError(f"there is no buffer at {recipe.buffer.uri} yet; rft buffer import fills one.")
    return stack.enter_context(Buffer(recipe.buffer.uri, read_only=True))


def _prompt_hint(section: Taskset, report: TasksetReport) -> str:
    """The columns that could be named, where none was."""
    possible = possible_prompts(report.columns)
    if section.prompt is not None or report.read_as or not possible:
        return ""
    return (
        f"\nColumns that could be the prompt: {', '.join(possible)}; name one: 'prompt: COLUMN' in the "
        "taskset, or --prompt COLUMN here"
    )


def _judged(
    read: Sequence[tuple[TasksetReport, list[Task]]], beside: Iterable[Task], recipe: TasksRecipe | None
) -> DataReport:
    report = DataReport([found for found, _ in read])
    every = [task for _, tasks in read for task in tasks]
    barred = {_asked(task) for task in [*every, *beside] if task.split == Split.HELDOUT}
    with closing(PromptView.of(recipe, report.problems)) as view:
        for found, tasks in read:
            if not tasks:
                continue
            found.leaked = sum(task.split == Split.TRAIN and _asked(task) in barred for task in tasks)
            view.show(tasks, _SHOWN, found)
            found.problems += reward_problems(recipe, tasks)
            _judge(found)
    return report


def _judge(found: TasksetReport) -> None:
    """Advice that follows from the counts of a taskset."""
    lengths = found.lengths
    if lengths is not None and lengths.too_long:
        said = (
            f"{lengths.too_long} of {lengths.measured} prompts have more than {lengths.room} tokens (the "
            f"longest {lengths.longest}), the room that explorer.max_tokens leaves in max_model_len: raise "
            "explorer.engine.max_model_len, or leave such rows out with 'where' of the source"
        )
        (found.problems if lengths.too_long == lengths.measured else found.warnings).append(said)
    if found.duplicates:
        found.warnings.append(f"{found.duplicates} rows make a task that another row made; it is stored once")
    if found.same_prompt:
        found.warnings.append(
            f"{found.same_prompt} tasks ask what another one asks, with another answer or other metadata; "
            "leave columns out with 'metadata', or rows with 'where'"
        )
    if found.leaked:
        found.warnings.append(
            f"{found.leaked} training tasks ask what a held-out task asks (spaces and case aside); "
            "task_decontamination_filter in 'task_ops' drops them"
        )
    if found.answers == 0:
        found.warnings.append(
            "no task has a reference answer; rewards such as exact_answer and math_verify read one: write "
            "'answer: COLUMN'"
        )


def _asked(task: Task) -> str:
    """The question of a task, without system messages, spaces and case aside."""
    return " ".join(" ".join(map(message_text, question(task.messages))).split()).casefold()
