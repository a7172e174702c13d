"""What one table's upkeep must know of the writes since the table was opened."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Growth:
    """Writes to a table by this owner."""

    commits: int = 0
    """Since the last look at the table's fragments."""
    rows: int = 0
    """Since the last look at the table's fragments."""
    superseded: list[int] = field(default_factory=list)
    """Versions followed by an append, which names every file that they name; oldest first."""
    cleaned_at: float = -math.inf
    """When old versions were last removed (monotonic, seconds)."""

    def appended(self, rows: int, version: int) -> None:
        """Count an append of `rows` rows onto `version`."""
        self.commits += 1
        self.rows += rows
        self.superseded.append(version)

    def looked_at(self) -> None:
        """Count from here again."""
        self.commits = self.rows = 0
