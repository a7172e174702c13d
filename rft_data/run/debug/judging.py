"""One operator over stored groups, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.filters import Compare
from rft_data.reading.whole_groups import whole_groups

_SHOWN = ("member", "turn", "reward", "completion_text")
"""Columns of the stored rows that are shown."""


Judge = Callable[[str | None], list[dict[str, object]]]
"""The operator's verdict on each row of a group (the first one, if none is named).

Raises: RecipeError where there is no such group; OperatorError.
"""


@contextmanager
def judging(buffer: Buffer, name: str, args: Mapping[str, object]) -> Iterator[Judge]:
    """Make an operator, which writes nothing. Raises: RecipeError for arguments that it does not take."""
    operators = [{name: dict(args)}]
    with closing(OperatorPipeline(operators, name="debug", allow_unsafe=True, store=buffer)) as pipeline:
        yield lambda group_id: _judged(buffer, pipeline, group_id)


def _judged(buffer: Buffer, pipeline: OperatorPipeline, group_id: str | None) -> list[dict[str, object]]:
    where = None if group_id is None else Compare("group_id", "eq", group_id)
    groups = whole_groups(buffer, None, where)
    if not len(groups):
        raise RecipeError(
            f"buffer {buffer.location} has no group {group_id or 'at all'}; see `rft buffer head`."
        )
    rows = buffer.take(groups.group(0).tolist())
    verdicts = pipeline.run(rows).to_pylist()
    shown = rows.select([column for column in _SHOWN if column in rows.column_names]).to_pylist()
    return [{**row, **verdict} for row, verdict in zip(shown, verdicts, strict=True)]
