"""The result of `verify`: findings, each with its losses and a remedy, and the report of all findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rft_data.buffer.care.ranges import Ranges, ranges_text, size

Severity = Literal["note", "damage", "fatal"]
"""`note`: nothing of value is lost; `damage`: `repair` handles it; `fatal`: `repair` refuses."""
FindingKind = Literal[
    "schema_version",
    "schema",
    "no_table",
    "manifest",
    "missing_manifest",
    "old_manifest",
    "missing_file",
    "empty_file",
    "cut_file",
    "unreadable_rows",
    "digest",
    "seq",
    "duplicate",
    "value",
    "lost_rows",
    "row_counter",
    "order",
    "group",
    "verdict",
    "lease",
    "double_lease",
    "consumption",
    "annotation",
    "payload",
    "weights",
    "leftover",
    "orphan_file",
    "repair",
    "owner",
]
"""`KINDS` has the meaning of each."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a buffer's folder, or a note about it."""

    kind: FindingKind
    severity: Severity
    table: str
    """Name of the table; empty when it is about the whole folder."""
    place: str
    """The file (relative to the buffer's folder), row or lease it is about."""
    lost: str
    """Data that can no longer be read or trusted; empty when nothing is lost."""
    remedy: str
    """Advice for the mend."""
    rows: Ranges = ()
    """Row numbers concerned: `seq` in `experiences`, Lance's row id in every other table."""
    ids: tuple[str, ...] = ()
    """Experience, group, lease or payload ids concerned, as far as known."""


KINDS: dict[FindingKind, str] = {
    "schema_version": "the marker `schema_version` is missing or of another version",
    "schema": "a table has other columns than this package writes",
    "no_table": "no version of a table can be opened",
    "manifest": "the newest manifest is empty, cut off, not readable or at odds with its files",
    "missing_manifest": "the newest version that was written has no manifest",
    "old_manifest": "a manifest of an older version is empty or cut off",
    "missing_file": "a data or deletion file that the table names does not exist",
    "empty_file": "a data or deletion file has no bytes",
    "cut_file": "a data file has another size than its manifest says",
    "unreadable_rows": "a data file is there but rows in it cannot be decoded",
    "digest": "a row does not match its digest",
    "seq": "a row's `seq` is not its row id",
    "duplicate": "an id is stored twice",
    "value": "a column holds what it never may: text that is not UTF-8, JSON that does not parse",
    "lost_rows": "row numbers are missing, or recorded as lost and there",
    "row_counter": "the next row number was given out before",
    "order": "rows are not in the order they were written",
    "group": "a group names rows that are not stored",
    "verdict": "a group may be leased and its rows have no annotation",
    "lease": "a lease names rows or groups that do not exist",
    "double_lease": "a step has two leases, or a group was leased twice to one consumer",
    "consumption": "a step was consumed but its lease is gone",
    "annotation": "an annotation is about a row that is not stored, or about another row",
    "payload": "a row refers to a payload that is not stored",
    "weights": "the weights of a published version are gone",
    "leftover": "a temporary file of a write that was killed",
    "orphan_file": "a data file that no version names",
    "repair": "a repair was interrupted",
    "owner": "a process has the buffer open for writing",
}
"""Every kind of finding and what it means."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of one verification of a buffer."""

    root: Path | str
    """Folder or URL of the buffer."""
    deep: bool
    """Whether every row was checked, not only files and numbers."""
    rows: dict[str, int]
    """Readable rows of each table."""
    findings: tuple[Finding, ...]

    @property
    def damaged(self) -> bool:
        """Whether anything is worse than a note."""
        return bool(self.damage)

    @property
    def damage(self) -> tuple[Finding, ...]:
        """The findings that are worse than a note."""
        return tuple(finding for finding in self.findings if finding.severity != "note")

    def of(self, kind: FindingKind, table: str | None = None) -> tuple[Finding, ...]:
        """The findings of one kind, in one table or any."""
        return tuple(f for f in self.findings if f.kind == kind and table in (None, f.table))

    def as_json(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "root": str(self.root),
            "deep": self.deep,
            "damaged": self.damaged,
            "rows": self.rows,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def text(self) -> str:
        """The report as text: damage first, then notes."""
        total = sum(self.rows.values())
        depth = "every row checked" if self.deep else "files and row numbers checked"
        worst = len(self.damage)
        verdict = f"{worst} finding{'s' if worst != 1 else ''} of damage" if worst else "no damage"
        lines = [f"{self.root}: {total} rows in {len(self.rows)} tables, {depth}: {verdict}"]
        order = {"fatal": 0, "damage": 1, "note": 2}
        for finding in sorted(self.findings, key=lambda f: order[f.severity]):
            lines += describe(finding)
        return "\n".join(lines)


def describe(finding: Finding) -> list[str]:
    """A finding as lines of text."""
    where = " ".join(part for part in (finding.table, finding.place) if part)
    lines = [f"{finding.severity:<7}{finding.kind}: {where}: {KINDS[finding.kind]}"]
    if finding.lost:
        lines.append(f"       lost: {finding.lost}")
    if finding.rows:
        lines.append(f"       rows: {ranges_text(finding.rows)} ({size(finding.rows)})")
    if finding.ids:
        lines.append(f"       ids: {ids_text(finding.ids)}")
    return [*lines, f"       do: {finding.remedy}"]


def ids_text(ids: Sequence[str], limit: int = 4) -> str:
    """The first few ids and how many more there are."""
    more = f" and {len(ids) - limit} more" if len(ids) > limit else ""
    return ", ".join(ids[:limit]) + more
