"""Rows that validation refused, stored with their reasons; a row sent again is stored once."""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.buffer.maintenance import maintain
from rft_data.buffer.store import Store
from rft_data.buffer.validation import Refused
from rft_data.core.codec import to_table
from rft_data.core.rows import now
from rft_data.core.schema import QUARANTINE


class Quarantine:
    """The `quarantine` table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[tuple[str, str]] | None = None

    def set_aside(self, refused: Sequence[Refused]) -> None:
        """Store refused rows; a row that is in the table already is not stored again."""
        if not refused:
            return
        with self._store.locked("quarantine"):
            known, self._known = self._known, None  # read again if the outcome of the write is unknown
            if known is None:
                names = self._store.rows("quarantine").scan(["experience_id", "reason"]).columns
                known = set(zip(*(column.to_pylist() for column in names), strict=True))
            fresh = {(row.experience_id, row.reason): row for row in refused}
            rows = [
                {
                    "experience_id": row.experience_id,
                    "reason": row.reason,
                    "row": row.excerpt,
                    "created_at": now(),
                }
                for key, row in fresh.items()
                if key not in known
            ]
            if rows:
                self._store.add("quarantine", to_table(rows, QUARANTINE))
            self._known = known.union(fresh)
        maintain(self._store, "quarantine")
