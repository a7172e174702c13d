"""Experiences as a table: filtered, newest first, a page at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired

import numpy as np

from rft_data.buffer import Buffer
from rft_data.core.filters import In
from rft_data.core.stored_rows import ExperienceRow
from rft_data.reading.lineage import judgements
from rft_data.reading.lineage_parts import Judgement
from rft_data.reading.tags import frontier
from rft_data.web.row_choice import WINDOW, Choice

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
_GROWTH = 4
"""Each window is so much larger than the one before: few matched in that."""
_SEARCH_S = 2.0
"""How long a page is searched for before it says how far it came."""


class ShownRow(ExperienceRow):
    """A row of a page's table: the columns of COLUMNS, and what is found about it."""

    judgements: list[Judgement]
    key: NotRequired[float]
    """The value that the table's order goes by."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of experiences, newest first."""

    rows: list[ShownRow]
    """The columns of COLUMNS, and `judgements`."""
    older: int | None
    """Row number below which the next page is searched; None: nothing is left."""
    searched_to: int
    """Lowest row number that was looked at."""


def listing(buffer: Buffer, choice: Choice, below: int | None, most: int = PAGE) -> Listing:
    """The newest chosen rows below a row number.

    The search goes back in windows of rows and ends after 2 seconds with what it has: rare rows of a long run
    are found over several pages, and no request reads a whole table.
    """
    end = frontier(buffer)
    top = end if below is None else min(below, end)
    size = 2 * most if choice.everything else WINDOW
    found: list[int] = []
    until = time.monotonic() + _SEARCH_S
    while top > 0 and len(found) < most and time.monotonic() < until:
        bottom = max(0, top - min(size, choice.reach()))
        seqs = np.sort(choice.read(buffer, ["seq"], bottom, top)["seq"].to_numpy())[::-1]
        found += seqs[: most - len(found)].tolist()
        top = found[-1] if len(found) == most else bottom
        size *= _GROWTH
    return Listing(numbered_rows(buffer, found), top if top > 0 else None, top)


def numbered_rows(buffer: Buffer, seqs: Sequence[int]) -> list[ShownRow]:
    """Stored rows by number, in the order given, with their verdicts; those that are gone are left out."""
    if not seqs:
        return []
    stored = buffer.read("experiences", COLUMNS, In("seq", tuple(seqs))).to_pylist()
    by_seq = {row["seq"]: row for row in stored}
    rows = [by_seq[seq] for seq in seqs if seq in by_seq]
    with_verdicts(buffer, rows)
    return rows


def with_verdicts(buffer: Buffer, rows: Sequence[ShownRow]) -> None:
    """Give each row its newest judgements, in the key `judgements`."""
    verdicts = judgements(buffer, [row["seq"] for row in rows]) if rows else {}
    for row in rows:
        row["judgements"] = verdicts.get(row["seq"], [])
