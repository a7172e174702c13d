"""Makes rows of the table `annotations` from what a pipeline did with stored experiences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ops.runtime.native import META, STATS
from ops.runtime.stage import ROW, Outcome, row_numbers
from rft_data.core import schema
from rft_data.core.codec import one_array
from rft_data.core.effective_reward import REWARD
from rft_data.core.effective_reward import SHAPED_REWARD as SHAPED
from rft_data.core.rows import canonical_json, now
from rft_data.core.words import Verdict

COLUMNS = ("advantage", SHAPED, "masked")
"""Operator columns that the table has too; all other operator columns go into `stats`."""
UNJUDGED = "unjudged"
"""Key in `stats` of a row kept in spite of failures (`on_failure: keep`): operator to its failure."""


def without_advantage(outcome: Outcome) -> dict[int, str]:
    """Rows that an advantage operator left without one, with the reason to drop them."""
    if "advantage" not in outcome.table.column_names:
        return {}
    column = outcome.table["advantage"]
    if not column.null_count:
        return {}
    rows = row_numbers(outcome.table)[column.is_null().to_numpy()].tolist()
    failed = outcome.unjudged
    return {row: f"no advantage: {failed.get(row, 'it has no reward')}" for row in rows}


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """What one operator of the list did in one run."""

    name: str
    """Its name; the second operator of one name has `#2` after it."""
    rows_in: int
    rows_out: int
    seconds: float
    dropped: Mapping[int, str]
    """Input row number to reason."""
    quarantined: Mapping[int, str]
    """Input row number to `operator: exception: message`."""
    unjudged: Mapping[int, str]
    """The same for rows that are kept although it failed on them."""

    @property
    def lost(self) -> Mapping[Verdict, Mapping[int, str]]:
        """Rows that did not pass, by verdict."""
        return {Verdict.DROPPED: self.dropped, Verdict.QUARANTINED: self.quarantined}


def annotation_rows(
    experiences: pa.Table,
    kept: pa.Table,
    rewarded: Sequence[pa.Table],
    reports: Sequence[OperatorReport],
    pipeline_hash: str,
) -> pa.Table:
    """One row of schema.ANNOTATIONS for each experience, in their order.

    Args:
        kept: the rows that passed, with ROW.
        rewarded: all rows with ROW and their rewards, those that were lost as they were then.
    """
    rows = experiences.num_rows
    verdict, dropped_by, reason = [Verdict.KEPT] * rows, [""] * rows, [""] * rows
    for report in reports:
        for ended_by, lost in report.lost.items():
            for row, why in lost.items():
                verdict[row], dropped_by[row], reason[row] = ended_by, report.name, why
    place = np.full(rows, -1)
    place[row_numbers(kept)] = np.arange(kept.num_rows)
    places = pa.array(place, mask=place < 0)
    stats = pa.array(_stats(experiences, kept, reports), pa.string())
    columns = {
        "seq": experiences["seq"],
        "experience_id": experiences["experience_id"],
        "pipeline_hash": pa.repeat(pipeline_hash, rows),
        "verdict": verdict,
        "dropped_by": dropped_by,
        "reason": reason,
        "stats": stats.take(places).fill_null("{}"),
        "shaped_reward": _shaped_rewards(experiences, rewarded),
        "created_at": pa.repeat(pa.scalar(now(), schema.ANNOTATIONS.field("created_at").type), rows),
    }
    own = {name: _spread(kept, name, places) for name in COLUMNS if name not in columns}
    return pa.table({**columns, **own}, schema=schema.ANNOTATIONS)


def _spread(kept: pa.Table, name: str, places: pa.Array) -> pa.Array:
    """A column of the kept rows, with one value for each input row; null where the row was not kept."""
    kind = schema.ANNOTATIONS.field(name).type
    if name not in kept.column_names:
        return pa.nulls(len(places), kind)
    return one_array(kept[name].cast(kind)).take(places)


def _shaped_rewards(experiences: pa.Table, rewarded: Sequence[pa.Table]) -> pa.Array:
    """The reward that operators gave each row or filled in; null where the stored one counts."""
    kind = schema.ANNOTATIONS.field(SHAPED).type
    given = np.full(experiences.num_rows, np.nan, np.float32)
    for part in rewarded:
        rows = row_numbers(part)
        if REWARD in part.column_names:
            stored = experiences[REWARD].cast(kind).to_numpy()[rows]
            now = part[REWARD].cast(kind).to_numpy()
            given[rows] = np.where(now == stored, np.nan, now)
        if SHAPED in part.column_names:
            shaped = part[SHAPED].cast(kind).to_numpy()
            given[rows] = np.where(np.isnan(shaped), given[rows], shaped)
    return pa.array(given, kind, mask=np.isnan(given))


def _stats(experiences: pa.Table, kept: pa.Table, reports: Sequence[OperatorReport]) -> list[str]:
    """The operators' other columns (not in COLUMNS) as one JSON text for each kept row."""
    known = {*experiences.column_names, ROW, *COLUMNS}
    columns: dict[str, pa.ChunkedArray] = {}
    for name in (STATS, META):
        if name in kept.column_names:
            part = pa.table({name: kept[name]}).flatten()
            columns |= {key.partition(".")[2]: part[key] for key in part.column_names}
    columns |= {name: kept[name] for name in kept.column_names if name not in {*known, STATS, META}}
    texts = _objects(columns, kept.num_rows)
    failures = _unjudged(reports)
    for place, row in enumerate(row_numbers(kept).tolist()) if failures else ():
        if row in failures:
            texts[place] = canonical_json({**json.loads(texts[place]), UNJUDGED: failures[row]})
    return texts


def _objects(columns: Mapping[str, pa.ChunkedArray], rows: int) -> list[str]:
    """One JSON object for each row, keys sorted."""
    if not columns:
        return ["{}"] * rows
    keys = [canonical_json(name).replace("%", "%%") for name in sorted(columns)]
    template = "{" + ",".join(f"{key}:%s" for key in keys) + "}"
    return [template % row for row in zip(*(_texts(columns[name]) for name in sorted(columns)), strict=True)]


def _texts(column: pa.ChunkedArray) -> list[str]:
    """The values as JSON. Equal values are encoded once: many are statistics of groups."""
    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return [_json(value) for value in column.to_pylist()]
    encoded = one_array(column).dictionary_encode()
    written = [*map(_json, encoded.dictionary.to_pylist()), "null"]
    places = encoded.indices.fill_null(len(written) - 1).to_pylist()
    return [written[place] for place in places]


def _json(value: Any) -> str:
    return "null" if value is None else canonical_json(_plain(value))


def _unjudged(reports: Sequence[OperatorReport]) -> dict[int, dict[str, str]]:
    """Row number to operator to failure."""
    failures: dict[int, dict[str, str]] = {}
    for report in reports:
        for row, why in report.unjudged.items():
            failures.setdefault(row, {})[report.name] = why
    return failures


def _plain(value: Any) -> Any:
    """`value` as JSON types; a float that is not finite becomes None, an unknown type its `str`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
