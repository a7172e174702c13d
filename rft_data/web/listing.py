"""Experiences as a table: filtered, newest first, a page at a time, with the spread of their rewards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare, Filter, parse_text
from rft_data.core.schema import EXPERIENCES
from rft_data.reading.lineage import judgements

PAGE = 50
"""Rows of a page."""
COLUMNS = [
    "seq",
    "experience_id",
    "source",
    "run_id",
    "taskset",
    "task_id",
    "group_id",
    "member",
    "turn",
    "version_min",
    "completion_text",
    "finish_reason",
    "reward",
    "unscored_reason",
    "created_at",
]
_WINDOW = 50_000
"""Rows that are searched at a time, newest first."""
_SEARCH_S = 2.0
"""How long a page is searched for before it says how far it came."""
_BINS = 20


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of experiences, newest first."""

    rows: list[dict[str, Any]]
    """The columns of COLUMNS, and `judgements`."""
    older: int | None
    """Row number below which the next page is searched; None: nothing is left."""
    searched_to: int
    """Lowest row number that was looked at."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Experiences whose stored reward lies in [low, high); in the last one also `high`."""

    low: float
    high: float
    count: int
    where: str
    """The filter that shows them."""


def listing(buffer: Buffer, where: Filter | None, below: int | None) -> Listing:
    """The newest rows below a row number that a filter lets through.

    The search goes back in windows of rows and ends after 2 seconds with what it has: rare rows of a long run
    are found over several pages, and no request reads a whole table.
    """
    newest = buffer.tail("experiences", 1, ["seq"]).column("seq").to_pylist()
    end = newest[0] + 1 if newest else 0
    top = end if below is None else min(below, end)
    found: list[dict[str, Any]] = []
    until = time.monotonic() + _SEARCH_S
    while top > 0 and len(found) < PAGE and time.monotonic() < until:
        bottom = max(0, top - (_WINDOW if where is not None else 2 * PAGE))
        span = (Compare("seq", "ge", bottom), Compare("seq", "lt", top))
        parts = span if where is None else (*span, where)
        rows = buffer.read("experiences", COLUMNS, And(parts)).sort_by([("seq", "descending")])
        found += rows.slice(0, PAGE - len(found)).to_pylist()
        top = found[-1]["seq"] if len(found) == PAGE else bottom
    with_verdicts(buffer, found)
    return Listing(found, top if top > 0 else None, top)


def with_verdicts(buffer: Buffer, rows: Sequence[dict[str, Any]]) -> None:
    """Give each row its newest judgements, in the key `judgements`."""
    verdicts = judgements(buffer, [row["seq"] for row in rows]) if rows else {}
    for row in rows:
        row["judgements"] = verdicts.get(row["seq"], [])


def parsed(text: str) -> Filter | None:
    """The filter that a person wrote; None for none.

    Raises: RecipeError that says what is wrong with it.
    """
    return parse_text(text, EXPERIENCES) if text.strip() else None


def histogram(buffer: Buffer, where: Filter | None, text: str) -> list[Bin]:
    """How the stored rewards of the rows that a filter lets through are spread; empty without any.

    Args: text: the filter as it was written, which the filters of the bins narrow.
    """
    rewards: pa.ChunkedArray = buffer.read("experiences", ["reward"], where)["reward"]
    values = rewards.drop_null().to_numpy()
    values = values[np.isfinite(values)].astype(np.float64)
    if not len(values):
        return []
    low, high = float(values.min()), float(values.max())
    edges = _edges(low, high)
    counts, _ = np.histogram(values, edges)
    bins = []
    for number, count in enumerate(counts):
        first, last = float(edges[number]), float(edges[number + 1])
        upper = "<=" if number == len(counts) - 1 else "<"
        own = f"reward >= {first!r} and reward {upper} {last!r}"
        bins.append(Bin(first, last, int(count), f"({text}) and {own}" if text.strip() else own))
    return bins


def _edges(low: float, high: float) -> npt.NDArray[np.float64]:
    """Edges of at most 20 bins, numbers of the column's type; all differ unless there is one value alone."""
    share = np.linspace(0, 1, _BINS + 1)
    edges = np.unique(np.clip(low * (1 - share) + high * share, low, high).astype(np.float32))
    return edges.astype(np.float64) if len(edges) > 1 else np.array([low, high])
