"""A list of operators over the newest groups of a buffer, by the machine of `rft data dry-run`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ruamel.yaml import YAML

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.filters import parse_text
from rft_data.core.schema import EXPERIENCES
from rft_data.reading.whole_groups import GroupRows, whole_groups
from rft_data.recipe.invalid import invalid
from rft_data.recipe.load import load_operator_recipe
from rft_data.recipe.preflight.problem import Problem
from rft_data.run.build import experience_pipeline
from rft_data.run.rejudge import StoredVerdicts, dry_run, groups_per_batch
from rft_data.run.trial.effects import Watched
from rft_data.run.trial.operator_text import KEY, OperatorText, read_operators

if TYPE_CHECKING:
    from ops.runtime.pipeline import OperatorPipeline

MOST_GROUPS = 2_000


class Request(TypedDict):
    """The operators of a trial and the rows that they get; JSON values."""

    location: str
    """Folder or URL of the buffer."""
    recipe: str | None
    """The stored recipe of the run, whose other settings hold; None: of a buffer alone."""
    run_id: str | None
    """Only groups of this run; None: of all."""
    text: str
    """The operators, as YAML."""
    where: str
    """A filter: only groups with a row that it lets through; empty: all."""
    groups: int
    """The newest so many."""


def tried(request: Request) -> dict[str, object]:
    """Effects of the operators, as JSON values; nothing is written.

    Raises: RecipeError for a text, a filter or a list that is not valid; OperatorError when one breaks its
        contract; IntegrityError if a stored row is damaged.
    """
    text = read_operators(request["text"])
    with Buffer(request["location"], read_only=True) as buffer:
        pipeline, batch = tried_pipeline(request["recipe"], text, buffer)
        with closing(pipeline):
            groups = newest_groups(buffer, request)
            stored = StoredVerdicts(buffer)
            watched = Watched(pipeline, stored)
            found = dry_run(buffer, watched, groups, groups_per_batch=batch, against=stored)
            changed = _changed_columns(text, buffer, groups, batch)
    return {
        **{key: value for key, value in found.as_json().items() if key in ("groups", "first", "difference")},
        "outcomes": [asdict(one) for one in watched.outcomes()],
        "spreads": watched.spreads(),
        "changed": changed,
    }


def tried_pipeline(recipe: str | None, text: OperatorText, buffer: Buffer) -> tuple[OperatorPipeline, int]:
    """The operators, with what the run's algorithm adds to them, and how many groups they judge together."""
    problems = list(_unbuildable(text, buffer))
    if problems:
        raise invalid(text.origins, problems)
    if recipe is None:
        return _alone(text.operators, buffer), 32
    out = io.StringIO()
    YAML(typ="safe", pure=True).dump(text.operators, out)
    loaded = load_operator_recipe(Path(recipe), [f"{KEY}={out.getvalue()}"])
    return experience_pipeline(loaded, buffer), groups_per_batch(loaded)


def _unbuildable(text: OperatorText, buffer: Buffer) -> Iterator[Problem]:
    """Operators that refuse their arguments."""
    for place, entry in enumerate(text.operators):
        try:
            _alone([entry], buffer).close()
        except RftError as err:
            yield Problem((KEY, place, *entry), str(err).replace("\n", " "))


def _alone(operators: list[dict[str, Any]], buffer: Buffer) -> OperatorPipeline:
    from ops.runtime.pipeline import OperatorPipeline  # here: it imports Data-Juicer

    return OperatorPipeline(operators, name=KEY, store=buffer)


def newest_groups(buffer: Buffer, request: Request) -> GroupRows:
    where = parse_text(request["where"], EXPERIENCES) if request["where"].strip() else None
    groups = whole_groups(buffer, request["run_id"], where)
    if not len(groups):
        raise RecipeError("no stored group fits: change the filter, or wait for the run's first groups.")
    return groups.only(set(groups.names[-min(request["groups"], MOST_GROUPS) :]))


def _changed_columns(
    text: OperatorText, buffer: Buffer, groups: GroupRows, batch: int
) -> list[tuple[str, list[str]]]:
    """By operator of the list, the columns that it added or changed in the first groups."""
    rows = buffer.take(next(groups.batches(max(batch, 32))).tolist())
    found = []
    for entry in text.operators:
        [name] = entry
        with closing(_alone([entry], buffer)) as pipeline:
            verdicts = pipeline.run_tasks(rows)
        before, after = rows.take(verdicts.kept), verdicts.table
        changed = [
            column
            for column in after.column_names
            if column not in before.column_names or not after[column].equals(before[column])
        ]
        found.append((name, changed))
        rows = after
    return found
