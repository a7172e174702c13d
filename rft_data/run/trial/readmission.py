"""Readmission for the page: the rejected groups of a run that operators which a person tried would keep.

It goes on beside the run too: only groups that the run has rejected are stored, under a run id of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.placement.hub.client import HubClient
from rft_data.recipe.load import load_operator_recipe
from rft_data.run.build import experience_pipeline
from rft_data.run.rejudge import Chosen, JudgedAgain, Readmitted, judged_again
from rft_data.run.trial.operator_text import read_operators
from rft_data.run.trial.trial import Request, newest_groups, tried_pipeline

_GROUPS_PER_CALL = 64
Store = Buffer | HubClient
Write = Callable[[Callable[[Store], Readmitted]], Readmitted]


class Tried(TypedDict):
    """A trial whose groups are to be readmitted; JSON values."""

    trial: Request
    beside: bool
    """Whether the run may be going on."""


def readmitted(request: Tried, write: Write) -> dict[str, object]:
    """Readmit the groups that a trial looked at, that the run rejected and its operators keep.

    Args: write: calls what it is given with the buffer to write to, or with its hub.
    Returns: `Readmitted` as JSON values.
    Raises: as `tried`, and as `judged_again`; RecipeError for the run's own operators beside the run.
    """
    wanted = request["trial"]
    run_id, recipe = wanted["run_id"], wanted["recipe"]
    if run_id is None or recipe is None:
        raise RecipeError("a buffer alone has no run whose rejected groups could be readmitted.")
    text = read_operators(wanted["text"])
    verdicts: list[pa.Table] = []
    with Buffer(wanted["location"], read_only=True) as buffer:
        pipeline, batch = tried_pipeline(recipe, text, buffer)
        with closing(pipeline):
            if request["beside"]:
                _check_other_operators(recipe, buffer, pipeline.pipeline_hash)
            names = set(newest_groups(buffer, wanted).names)
            new_run = f"{run_id}-readmitted-{pipeline.pipeline_hash[:8]}"
            again = judged_again(
                buffer, Chosen(run_id, new_run, names), pipeline, verdicts.append, groups_per_batch=batch
            )

        def enter(store: Store) -> Readmitted:
            return _entered(again, buffer, store, verdicts)

        return write(enter).as_json() if again.kept else again.enter(buffer, _Nothing()).as_json()


def _check_other_operators(recipe: str, buffer: Buffer, pipeline_hash: str) -> None:
    """Raises: RecipeError for the operators by whose verdicts the run itself trains."""
    with closing(experience_pipeline(load_operator_recipe(Path(recipe)), buffer)) as own:
        if own.pipeline_hash == pipeline_hash:
            raise RecipeError(
                "these are the run's own operators, and the run is going on: change the list, or wait until "
                "the run has ended."
            )


def _entered(again: JudgedAgain, buffer: Buffer, store: Store, verdicts: Sequence[pa.Table]) -> Readmitted:
    if isinstance(store, Buffer):
        for table in verdicts:
            store.annotate(table)
        return again.enter(buffer, store)
    return again.enter(buffer, _AtHub(store, verdicts))


class _Nothing:
    """The hub of a trial that stores nothing."""

    def add_rows(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Nothing is kept."""


class _AtHub:
    """Sends groups to a hub, each with its verdicts and versions; implements `RowStore`."""

    def __init__(self, hub: HubClient, verdicts: Sequence[pa.Table]) -> None:
        self._hub, self._verdicts = hub, pa.concat_tables(verdicts)
        self._versions: Sequence[Mapping[str, object]] = ()

    def add_rows(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Versions wait for the groups that they sampled."""
        if name == "versions":
            self._versions = rows
            return
        for start in range(0, len(rows), _GROUPS_PER_CALL):
            some = rows[start : start + _GROUPS_PER_CALL]
            seqs = [seq for row in some for seq in _seqs(row)]
            own = self._verdicts.filter(pc.is_in(self._verdicts["seq"], pa.array(seqs, pa.int64())))
            self._hub.readmit(str(some[0]["run_id"]), some, self._versions, own)
            self._versions = ()


def _seqs(row: Mapping[str, object]) -> Sequence[int]:
    found = row["seqs"]
    return found if isinstance(found, list | tuple) else ()
