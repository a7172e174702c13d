"""The rows of a taskset's file, dataset or function, and the tasks that they become."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

from rft_data.core.errors import MissingFileError, RowError
from rft_data.core.rows import Task
from rft_data.exchange.formats.families import recognised, task_in
from rft_data.exchange.formats.functions import function_source
from rft_data.exchange.formats.inputs import Source, folder_source, hub_source, open_source
from rft_data.exchange.formats.jsonlines import Found, read_objects
from rft_data.exchange.formats.modelscope import modelscope_source
from rft_data.exchange.formats.payloads import store_payloads
from rft_data.exchange.formats.records import Origin, Row
from rft_data.recipe.task_sources import (
    FileTasks,
    FunctionTasks,
    HuggingFaceTasks,
    JsonLines,
    ModelScopeTasks,
    TableSource,
)
from rft_data.recipe.tasksets import Taskset
from rft_data.tasks.columns import is_template, template_fields
from rft_data.tasks.mapping import Finish, RowMapping, kept_fields
from rft_data.tasks.row_choice import PlacedRow, chosen_rows
from rft_data.tasks.task_images import store_images

log = logging.getLogger(__name__)

LOOKED_AT = 20
"""Rows whose columns decide what they are recognised as."""
AddPayload: TypeAlias = Callable[[bytes, str], str]
_BATCH_ROWS = 1000
"""Rows of a streamed dataset that a condition looks at together."""


def table_rows(source: TableSource | JsonLines) -> Iterator[PlacedRow]:
    """The rows of a source that become tasks, with their places.

    Raises: MissingFileError, MissingExtraError; RowError for a row that cannot be read; RecipeError for a
        condition, or a function, that fails.
    """
    if isinstance(source, JsonLines):
        return read_objects(Path(source.path))
    return _chosen(source, map(_readable, _opened(source).rows))


def opened_rows(source: TableSource | JsonLines) -> Source:
    """A source whose rows are imported: those that are chosen, and those that cannot be read with the reason.

    Raises: as `table_rows`, but for a row that cannot be read.
    """
    if isinstance(source, JsonLines):
        return open_source(Path(source.path))
    opened = _opened(source)
    return replace(opened, rows=_chosen_beside_bad(source, opened.rows))


def _chosen_beside_bad(source: TableSource, rows: Iterator[Found]) -> Iterator[Found]:
    bad: list[Found] = []

    def readable() -> Iterator[PlacedRow]:
        for found in rows:
            if found.row is None:
                bad.append(found)
            else:
                yield found.place, found.row

    for place, row in _chosen(source, readable()):
        yield Found(place, row)
        while bad:
            yield bad.pop(0)
    yield from bad


def _chosen(source: TableSource, rows: Iterator[PlacedRow]) -> Iterator[PlacedRow]:
    return chosen_rows(
        rows,
        where=source.where,
        shuffle=source.shuffle,
        limit=source.limit,
        batch_rows=_BATCH_ROWS if isinstance(source, HuggingFaceTasks) and source.streaming else None,
    )


def _opened(source: TableSource) -> Source:
    if isinstance(source, FunctionTasks):
        return function_source(source.use, source.args)
    if isinstance(source, HuggingFaceTasks):
        return _dataset(source)
    if isinstance(source, ModelScopeTasks):
        which = {"config": source.name, "split": source.split}
        return modelscope_source(source.path, **which, revision=source.revision)
    path = Path(source.path)
    if path.is_dir() and path.suffix != ".lance":
        raise MissingFileError(f"{path} is a folder; for a dataset's folder write use: huggingface.")
    return open_source(path)


def _dataset(source: HuggingFaceTasks) -> Source:
    path, which = Path(source.path), {"config": source.name, "split": source.split}
    if path.is_dir():
        return folder_source(path, **which, streaming=source.streaming)
    opened = hub_source(source.path, **which, revision=source.revision, streaming=source.streaming)
    log.info("rows are read from %s", opened.name)  # with the commit that can be read again
    return opened


def _readable(found: Found) -> PlacedRow:
    if found.row is None:
        raise RowError(f"{found.place}: {found.reason}.")
    return found.place, found.row


def table_tasks(
    section: Taskset, source: TableSource | JsonLines, given: Iterable[PlacedRow] | None = None
) -> list[Task]:
    """The tasks of a table, in the order of its rows.

    Args: given: its rows, where they were read already.
    Raises: as `table_rows`; RecipeError for columns that are not recognised; RowError for a row that is none.
    """
    rows = table_rows(source) if given is None else iter(given)
    made = _recognised(section, source, rows) if section.prompt is None else _mapped(section, source, rows)
    finish = Finish(
        system=section.system,
        images=section.images,
        folder=image_folder(source),
        tools=section.tools,
        workflow=section.workflow,
        reward=section.reward,
        difficulty=section.difficulty,
        heldout=section.heldout,
    )
    return [finish.task(task, row, where) for task, row, where in made]


def store_table_images(section: Taskset, source: TableSource | JsonLines, add: AddPayload) -> None:
    """Store the images that a table's tasks show, each once. `add`: `Buffer.add_payload`."""
    if section.images is not None:
        store_images(table_rows(source), section.images, image_folder(source), add)


def table_name(source: TableSource | JsonLines) -> str:
    """Name of a source in messages."""
    return source.use if isinstance(source, FunctionTasks) else source.path


def image_folder(source: TableSource | JsonLines) -> Path:
    """The folder that paths of images begin in: that of the file, else the working directory."""
    return Path(source.path).parent if isinstance(source, FileTasks | JsonLines) else Path()


def _mapped(
    section: Taskset, source: TableSource | JsonLines, rows: Iterator[PlacedRow]
) -> Iterator[tuple[Task, Mapping[str, object], str]]:
    """The tasks by the columns that the recipe names, with row and place."""
    mapping = RowMapping(section.name, str(section.prompt), section.answer, section.metadata)
    for where, row in rows:
        plain = row if isinstance(source, JsonLines) else _json(row, where, section)
        yield mapping.task(plain, where), row, where


def _recognised(
    section: Taskset, source: TableSource | JsonLines, rows: Iterator[PlacedRow]
) -> Iterator[tuple[Task, Mapping[str, object], str]]:
    """The tasks by the columns that are there, with row and place; one line of the log says as what."""
    head = list(islice(rows, LOOKED_AT))
    if not head:
        return
    chosen = recognised([row for _, row in head], table_name(source))
    log.info(
        "taskset '%s': columns %s are read as '%s' (%s)",
        section.name, ", ".join(head[0][1]), chosen.name, " | ".join(chosen.shapes),
    )  # fmt: skip
    for where, row in chain(head, rows):
        try:
            task = task_in(chosen, _json(row, where, section), Origin(section.name))
        except RowError as err:
            raise RowError(f"{where}: {str(err).removeprefix(f'{where}: ')}.") from err
        if section.metadata is not None:
            task = replace(task, metadata=kept_fields(row, section.metadata, where))
        yield task, row, where


def _json(row: Mapping[str, object], where: str, section: Taskset) -> Row:
    """The columns that a task is made of, as JSON values. Raises: RowError for one that JSON cannot hold."""
    kept = dict(row)
    if section.images is not None:
        kept.pop(section.images, None)
    if section.prompt is not None and section.metadata is not None:
        named = [section.prompt, section.answer or "", *section.metadata]
        fields = [field for one in named for field in (template_fields(one) if is_template(one) else [one])]
        kept = {key: value for key, value in kept.items() if key in {one.split(".")[0] for one in fields}}
    try:
        return store_payloads(kept, _no_bytes)[0]
    except RowError as err:
        raise RowError(f"{where}: {err}; name the columns that tasks keep with 'metadata'.") from err


def _no_bytes(_: bytes, kind: str) -> str:
    raise RowError(f"a column holds {kind}: name it with 'images' if it is the images")
