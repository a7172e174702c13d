"""The outcome of a repair: what it did, and what is lost; printed, stored and returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rft_data.buffer.care.damage import Finding, ids_text
from rft_data.buffer.care.ranges import Ranges, ranges_text, size, to_ranges
from rft_data.core.json_types import Json


@dataclass(slots=True)
class Repaired:
    """The outcome of one repair."""

    root: Path | str
    dry_run: bool
    findings: tuple[Finding, ...]
    """The damage found before anything was changed."""
    folder: Path | str | None = None
    """Folder of the removed files and rows; None when nothing was removed."""
    actions: list[str] = field(default_factory=list)
    """Actions taken, in order (with `dry_run`: those that would be taken)."""
    removed: dict[str, dict[int, str]] = field(default_factory=dict)
    """Table to row id (`seq` in experiences) to the reason why the row was removed."""
    kept: dict[tuple[str, int], Mapping[str, Json]] = field(default_factory=dict)
    """(table, row id) to the removed row, as JSON values."""
    recovered: Counter[str] = field(default_factory=Counter)
    """Number of damaged rows by table that were restored from older versions or data files."""
    commits: list[str] = field(default_factory=list)
    """Lost versions of tables, `table@version`."""
    skipped: Ranges = ()
    """Row numbers of lost commits; they are never given to other rows."""
    experience_ids: tuple[str, ...] = ()
    """Ids of lost experiences, as far as other tables know them."""
    groups: list[str] = field(default_factory=list)
    """Groups retired because some of their rows are lost."""
    leases: list[str] = field(default_factory=list)
    """Leases (`run/consumer/step`) released, or consumed and lost."""
    payloads: list[str] = field(default_factory=list)
    """Lost payload ids that rows refer to."""

    @property
    def changed(self) -> bool:
        """Whether the repair had anything to do."""
        return bool(self.actions)

    def remove(self, table: str, rows: dict[int, str]) -> None:
        """Record removed rows, each with the reason."""
        self.removed.setdefault(table, {}).update(rows)

    def as_json(self) -> dict[str, object]:
        """The outcome as JSON values."""
        return {
            "root": str(self.root),
            "dry_run": self.dry_run,
            "folder": None if self.folder is None else str(self.folder),
            "actions": self.actions,
            "lost": {
                "rows": {
                    name: [list(r) for r in to_ranges(rows)] for name, rows in self.removed.items() if rows
                },
                "experience_ids": list(self.experience_ids),
                "skipped_seqs": [list(pair) for pair in self.skipped],
                "commits": self.commits,
                "groups": self.groups,
                "leases": self.leases,
                "payloads": self.payloads,
            },
            "recovered": dict(self.recovered),
        }

    def text(self) -> str:
        """The outcome as text: what was done, then exactly what is lost."""
        if not self.actions:
            return f"{self.root}: nothing to repair"
        head = "would be done" if self.dry_run else f"done; what was taken out is in {self.folder}"
        lines = [f"{self.root}: {head}", *(f"  {action}" for action in self.actions)]
        for name, count in sorted(self.recovered.items()):
            lines.append(f"recovered {name}: {count} rows")
        for name, rows in sorted(self.removed.items()):
            ranges = to_ranges(rows)
            label = "at most" if self.dry_run else "lost"
            lines.append(f"{label:<10}{name}: {size(ranges)} rows ({ranges_text(ranges, 1000)})")
        if self.skipped:
            lines.append(
                f"lost      experiences: numbers {ranges_text(self.skipped, 1000)} of commits that are gone"
            )
        if self.commits:
            lines.append(f"fell back from {', '.join(self.commits)}")
        for what in ("groups", "leases", "payloads", "experience_ids"):
            values = list(getattr(self, what))
            if values:
                lines.append(f"lost      {what.replace('_', ' ')}: {ids_text(values, 1000)}")
        return "\n".join(lines)
