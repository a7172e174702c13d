"""Makes rows of the table `annotations` from what a pipeline did with stored experiences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ops.runtime.native import META, STATS
from ops.runtime.stage import ROW, Outcome, row_numbers
from rft_data.core import schema
from rft_data.core.canonical import canonical_json
from rft_data.core.codec import one_array
from rft_data.core.effective_reward import REWARD
from rft_data.core.effective_reward import SHAPED_REWARD as SHAPED
from rft_data.core.rows import now
from rft_data.core.words import Verdict

Bools = npt.NDArray[np.bool_]

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
    """Rows in, rows out and seconds of one operator of the list in one run."""

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
    left: pa.Table,
    rewarded: Sequence[pa.Table],
    reports: Sequence[OperatorReport],
    pipeline_hash: str,
) -> pa.Table:
    """One row of schema.ANNOTATIONS for each experience, in their order.

    Args:
        left: the rows that were left after the last operator, with ROW; some may be reported as lost.
        rewarded: all rows with ROW and their rewards, those that were lost as they were then.
    """
    rows = experiences.num_rows
    fates, lost = _verdict_columns(rows, reports)
    columns = {
        "seq": experiences["seq"],
        "experience_id": experiences["experience_id"],
        "pipeline_hash": pa.repeat(pipeline_hash, rows),
        **fates,
        "stats": _stats(experiences, left, reports, lost),
        SHAPED: _shaped_rewards(experiences, rewarded),
        "created_at": pa.repeat(pa.scalar(now(), schema.ANNOTATIONS.field("created_at").type), rows),
    }
    own = {name: _spread(left, name, lost) for name in COLUMNS if name not in columns}
    return pa.table({**columns, **own}, schema=schema.ANNOTATIONS)


def _verdict_columns(rows: int, reports: Sequence[OperatorReport]) -> tuple[dict[str, pa.Array], Bools]:
    """The columns `verdict`, `dropped_by` and `reason`, and which rows were lost.

    A text that rows share is made once.
    """
    lost = [
        (report.name, verdict, texts) for report in reports for verdict, texts in report.lost.items() if texts
    ]
    end, why = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    reasons = {"": 0}
    for number, (_, _, texts) in enumerate(lost, 1):
        places = np.fromiter(texts, np.int64, len(texts))
        end[places] = number
        why[places] = [reasons.setdefault(text, len(reasons)) for text in texts.values()]
    columns = {
        "verdict": _texts_at([Verdict.KEPT, *(verdict for _, verdict, _ in lost)], end),
        "dropped_by": _texts_at(["", *(name for name, _, _ in lost)], end),
        "reason": _texts_at(list(reasons), why),
    }
    return columns, end > 0


def _texts_at(texts: Sequence[str], numbers: npt.NDArray[np.integer]) -> pa.Array:
    """Column with the text of each number."""
    if len(texts) == 1:
        return pa.repeat(texts[0], len(numbers))
    return pa.array(texts, pa.string()).take(pa.array(numbers))


def _places(left: pa.Table, lost: Bools) -> npt.NDArray[np.int64]:
    """Position of each input row in `left`; -1 of one that was lost."""
    places = np.full(len(lost), -1)
    places[row_numbers(left)] = np.arange(left.num_rows)
    places[lost] = -1
    return places


def _spread(left: pa.Table, name: str, lost: Bools) -> pa.Array:
    """A column of the rows that are left, with one value for each input row; null where the row was lost."""
    kind = schema.ANNOTATIONS.field(name).type
    if name not in left.column_names:
        return pa.nulls(len(lost), kind)
    column = one_array(left[name].cast(kind))
    if left.num_rows == len(lost):  # all rows, in order
        gone = lost & column.is_valid().to_numpy(zero_copy_only=False)
        return pc.if_else(pa.array(gone), pa.scalar(None, kind), column) if gone.any() else column
    places = _places(left, lost)
    return column.take(pa.array(places, mask=places < 0))


def _shaped_rewards(experiences: pa.Table, rewarded: Sequence[pa.Table]) -> pa.Array:
    """The reward that operators gave each row or filled in; null where the stored one counts."""
    kind = schema.ANNOTATIONS.field(SHAPED).type
    given = np.full(experiences.num_rows, np.nan, np.float32)
    for part in (part for part in rewarded if part.num_rows):
        rows = row_numbers(part)
        if REWARD in part.column_names and not part[REWARD].equals(experiences[REWARD]):
            stored = experiences[REWARD].cast(kind).to_numpy()[rows]
            now = part[REWARD].cast(kind).to_numpy()
            given[rows] = np.where(now == stored, np.nan, now)
        if SHAPED in part.column_names:
            shaped = part[SHAPED].cast(kind).to_numpy()
            given[rows] = np.where(np.isnan(shaped), given[rows], shaped)
    missing = np.isnan(given)
    return pa.nulls(len(given), kind) if missing.all() else pa.array(given, kind, mask=missing)


def _stats(experiences: pa.Table, left: pa.Table, reports: Sequence[OperatorReport], lost: Bools) -> pa.Array:
    """The operators' other columns (not in COLUMNS) as one JSON text for each row; `{}` if it was lost."""
    known = {*experiences.column_names, ROW, *COLUMNS}
    columns: dict[str, pa.ChunkedArray] = {}
    for name in (STATS, META):
        if name in left.column_names:
            part = pa.table({name: left[name]}).flatten()
            columns |= {key.partition(".")[2]: part[key] for key in part.column_names}
    columns |= {name: left[name] for name in left.column_names if name not in {*known, STATS, META}}
    failures = _unjudged(reports)
    if not columns and not failures:
        return pa.repeat("{}", len(lost))
    texts, numbers = _objects(columns, left.num_rows)
    for at, row in enumerate(row_numbers(left).tolist()) if failures else ():
        if row in failures:
            texts.append(canonical_json({**json.loads(texts[numbers[at]]), UNJUDGED: failures[row]}))
            numbers[at] = len(texts) - 1
    return _texts_at([*texts, "{}"], np.append(numbers, len(texts))[_places(left, lost)])


def _objects(columns: Mapping[str, pa.ChunkedArray], rows: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """One JSON object for each row, keys sorted: the different texts, and the number of each row's text.

    Many columns are statistics of groups, so rows with equal values in all columns share a text.
    """
    names = sorted(columns)
    template = "{" + ",".join(canonical_json(name).replace("%", "%%") + ":%s" for name in names) + "}"
    parts = [_texts(columns[name]) for name in names]
    different, numbers = (len(parts[0][0]), parts[0][1]) if parts else (1, np.zeros(rows, np.int64))
    for texts, of_row in parts[1:]:
        encoded = pa.array(numbers * len(texts) + of_row).dictionary_encode()
        numbers, different = encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
    first = np.zeros(different, np.int64)
    first[numbers[::-1]] = np.arange(rows)[::-1]
    values = [[texts[number] for number in of_row[first].tolist()] for texts, of_row in parts if rows]
    return [template % row for row in zip(*values, strict=True)] if values else ["{}"], numbers


def _texts(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The different values as JSON, and the number of each row's value."""
    nested = pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType)
    values = pa.array(map(_json, column.to_pylist()), pa.string()) if nested else one_array(column)
    encoded = values.dictionary_encode()
    different = encoded.dictionary.to_pylist()
    written = [*(different if nested else map(_json, different)), "null"]
    return written, encoded.indices.fill_null(len(written) - 1).to_numpy().astype(np.int64)


def _json(value: object) -> str:
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "null"
    return "null" if value is None else canonical_json(_plain(value))


def _unjudged(reports: Sequence[OperatorReport]) -> dict[int, dict[str, str]]:
    """Row number to operator to failure."""
    failures: dict[int, dict[str, str]] = {}
    for report in reports:
        for row, why in report.unjudged.items():
            failures.setdefault(row, {})[report.name] = why
    return failures


def _plain(value: object) -> object:
    """`value` as JSON types; a float that is not finite becomes None, an unknown type its `str`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
