"""`rft data check`: what tasks a source or a recipe gives, as the model will see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.edge import Json, edge, show
from rft_data.cli.recipe_path import Overrides, shipped_or_file
from rft_data.core.errors import RecipeError

if TYPE_CHECKING:
    from rft_data.run.data_check import DataReport
    from rft_data.run.data_check.report import Example, Lengths, TasksetReport

_RECIPES = (".yaml", ".yml")
_SHOWN_LINES = 24
"""Lines of a prompt that are printed."""


def check(
    source: Annotated[
        str,
        typer.Argument(
            help="A recipe; or a file, a dataset's folder (FOLDER:SPLIT), hf://org/name:split@revision, "
            "modelscope://owner/name:split, reasoning_gym:NAME, verifiers:ENVIRONMENT, a buffer "
            "(BUFFER:TASKSET), or a function (./file.py:rows)."
        ),
    ],
    overrides: Overrides = None,
    recipe: Annotated[
        Path | None, typer.Option(help="Whose model, rewards and held-out tasks it is for.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Column, or template, of the prompt; else recognised.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", "--completion", help="Column, or template, of the answer.")
    ] = None,
    chosen: Annotated[str | None, typer.Option(help="Column of a pair's better answer.")] = None,
    rejected: Annotated[str | None, typer.Option(help="Column of a pair's worse answer.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column that says whether an answer is desirable, for KTO.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What tasks, answers or pairs a source gives: examples as the model sees them, lengths, gaps.

    With a recipe that reads no tasks, the source is what it would import.
    """
    with edge():
        from rft_data.recipe.load import load_recipe
        from rft_data.run.build import prepare_process
        from rft_data.run.data_check import check_recipe_data, check_source

        prepare_process()
        itself = shipped_or_file(Path(source))
        parts = {
            "prompt": prompt,
            "completion": answer,
            "chosen": chosen,
            "rejected": rejected,
            "label": label,
        }
        columns = {part: column for part, column in parts.items() if column is not None}
        if itself.suffix in _RECIPES:
            if recipe is not None or columns:
                raise RecipeError(f"{source} is a recipe; --recipe and columns are for other sources.")
            report = check_recipe_data(load_recipe(itself, overrides or []))
        else:
            if overrides and recipe is None:
                raise RecipeError(f"{overrides[0]!r} changes a recipe; name it with --recipe.")
            loaded = None if recipe is None else load_recipe(shipped_or_file(recipe), overrides or [])
            report = check_source(source, columns, loaded)
        show(report.as_json(), "\n".join(_lines(report)), as_json=as_json)
        if not report.is_sound:
            raise typer.Exit(1)


def _lines(report: DataReport) -> Iterator[str]:
    for found in report.tasksets:
        yield from _taskset(found)
        yield ""
    for problem in report.problems:
        yield f"problem: {problem}"
    yield "sound: a run can be fed with it" if report.is_sound else "not sound: mend the problems above"


def _taskset(found: TasksetReport) -> Iterator[str]:
    yield f"{found.kind} '{found.name}': {found.source}"
    if found.read_as:
        yield f"  {found.read_as}"
    yield from _tasks(found) if found.stored is None else _imported(found)
    if found.columns:
        yield "  columns: " + ", ".join(
            f"{one.name} ({one.kind}{f', {one.missing} missing' if one.missing else ''})"
            for one in found.columns
        )
    if found.lengths is not None:
        yield "  " + _measured(found.lengths)
    for number, one in enumerate(found.examples, start=1):
        yield from _example(number, one)
    yield from (f"  problem: {text}" for text in found.problems)
    yield from (f"  warning: {text}" for text in found.warnings)
    if found.write:
        under = "tasks" if found.stored is None else "imports"
        yield f"  in a recipe, under {under}: - {found.write}"


def _imported(found: TasksetReport) -> Iterator[str]:
    kinds = ", ".join(f"{count} {name}" for name, count in (found.stored or {}).items()) or "nothing"
    yield f"  rows: {found.rows}, stored as: {kinds}; duplicates: {found.duplicates}"


def _tasks(found: TasksetReport) -> Iterator[str]:
    counts = f"held out {found.heldout}, with answer {found.answers}"
    yield f"  rows: {found.rows}, tasks: {found.tasks} ({counts})"
    yield (
        f"  duplicates: {found.duplicates}, with the prompt of another task: {found.same_prompt}, asking a "
        f"held-out question: {found.leaked}"
    )


def _measured(one: Lengths) -> str:
    room = "" if one.room is None else f"; room for {one.room}, {one.too_long} too long"
    return (
        f"prompt {one.unit} of {one.measured} tasks: 50% {one.p50}, 90% {one.p90}, 99% {one.p99}, "
        f"longest {one.longest}{room}"
    )


def _example(number: int, one: Example) -> Iterator[str]:
    yield f"  example {number}" + ("" if one.tokens is None else f" ({one.tokens} tokens)")
    lines = one.prompt.splitlines()
    yield from (f"    | {line}" for line in lines[:_SHOWN_LINES])
    if len(lines) > _SHOWN_LINES:
        yield f"    ... {len(lines) - _SHOWN_LINES} more lines"
    kept = f"   metadata: {', '.join(one.metadata)}" if one.metadata else ""
    yield f"    answer: {one.answer}{kept}"
