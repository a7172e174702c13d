"""Output of the buffer's reading commands for people. Model output stays on one line, escaped."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict, cast

from rft_data.core.text import shown, size_text
from rft_data.reading.overview import Overview

_CELL = 60


def overview_text(facts: Overview, owner: str, tags: Sequence[str]) -> str:
    """A buffer at a glance."""
    return "\n".join(_overview_lines(facts, owner, tags))


def _overview_lines(facts: Overview, owner: str, tags: Sequence[str]) -> Iterator[str]:
    written = [table.last_write for table in facts.tables.values() if table.last_write is not None]
    total = sum(table.bytes for table in facts.tables.values())
    yield f"buffer      {facts.location} (schema {facts.schema_version}, {size_text(total)})"
    yield f"owner       {f'process {owner} has it open for writing' if owner else 'none'}"
    yield f"last write  {max(written):%Y-%m-%d %H:%M:%S} UTC" if written else "last write  never"
    yield f"{'table':<14}{'rows':>10}{'on disk':>12}{'fragments':>11}{'versions':>10}"
    for name, table in facts.tables.items():
        counts = f"{table.rows:>10}{size_text(table.bytes):>12}{table.fragments:>11}{table.versions:>10}"
        yield f"{name:<14}{counts}"
    if facts.sources:
        yield "experiences " + ", ".join(f"{count} {source}" for source, count in facts.sources.items())
        mean = "" if facts.reward_mean is None else f", mean reward {facts.reward_mean:.4g}"
        low, high = facts.versions or (0, 0)
        versions = "" if facts.versions is None else f", policy versions {low} to {high}"
        yield f"            {facts.scored} scored{mean}{versions}"
    for run in facts.runs:
        steps = f"{run.steps_leased} steps leased, {run.steps_consumed} in a checkpoint"
        newest = "" if run.newest_version is None else f", newest version {run.newest_version}"
        counts = f"{run.starts} starts, {run.experiences} experiences"
        yield f"run         {shown(run.run_id)}: {counts}, {steps}{newest}"
    if tags:
        yield f"tags        {', '.join(tags)}"


def rows_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as `column  value` lines with a blank line between rows; long values are cut."""
    return "\n\n".join("\n".join(_row_lines(row)) for row in rows)


def _row_lines(row: Mapping[str, object]) -> Iterator[str]:
    width = max(len(name) for name in row)
    for name, value in row.items():
        yield f"{name:<{width}}  {_cell(value, 160)}"


def _cell(value: object, width: int = _CELL) -> str:
    return shown(value if isinstance(value, str) else json.dumps(value, default=str), width)


def table_text(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Rows under a line of column names."""
    cells = [[shown(name) for name in columns], *([_cell(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return "\n".join(
        "  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def csv_text(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Rows as CSV under a line of column names; lists and maps are JSON, null is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(row[name]) for name in columns] for row in rows)
    return out.getvalue().removesuffix("\n")


def _csv_cell(value: object) -> object:
    return json.dumps(value, default=str) if isinstance(value, list | dict) else value


class _Hit(TypedDict):
    """A row of a search's result."""

    score: float
    seq: int
    reward: float | None
    completion_text: str


class _Tag(TypedDict):
    """A tag as JSON values."""

    name: str
    rows: int
    filter: object
    note: str
    created_at: str
    fault: str


def hits_text(found: Sequence[Mapping[str, object]]) -> str:
    """Search results: score, row number, reward, then the text."""
    lines = []
    for row in cast("Sequence[_Hit]", found):
        reward = "-" if row["reward"] is None else f"{row['reward']:.4g}"
        lines.append(
            f"{row['score']:8.4f}  seq {row['seq']:<8} reward {reward:<8} {shown(row['completion_text'])}"
        )
    return "\n".join(lines)


def tags_text(tags: Sequence[Mapping[str, object]]) -> str:
    """Tags, one a line."""
    lines = []
    for row in cast("Sequence[_Tag]", tags):
        where = "" if row["filter"] is None else f" where {json.dumps(row['filter'], ensure_ascii=False)}"
        note = f"  {shown(row['note'])}" if row["note"] else ""
        if row["fault"]:
            lines.append(f"{row['name']}: its filter cannot be read: {shown(row['fault'])}")
            continue
        lines.append(f"{row['name']}: experiences below {row['rows']}{where}  ({row['created_at']}){note}")
    return "\n".join(lines)
