"""Counts of the writes to a table since it was opened, for its maintenance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Growth:
    """Writes to a table by this owner."""

    commits: int = 0
    """Since the table's fragments were last checked."""
    rows: int = 0
    """Since the table's fragments were last checked."""
    superseded: list[int] = field(default_factory=list)
    """Versions followed by an append, whose manifest names all their files; oldest first."""
    cleaned_at: float = -math.inf
    """When old versions were last removed (monotonic, seconds)."""

    def appended(self, rows: int, version: int) -> None:
        """Count an append of `rows` rows onto `version`."""
        self.commits += 1
        self.rows += rows
        self.superseded.append(version)

    def reset(self) -> None:
        """Start counting commits and rows from 0."""
        self.commits = self.rows = 0
