"""The record of what a repair could not restore: `lost_rows.json` in the buffer's folder.

The buffer reads `seqs` when it opens: these rows are lost, and their numbers are never given to other rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rft_data.buffer.care.ranges import Ranges
from rft_data.buffer.experiences import LOST_ROWS
from rft_data.core.files import write_text


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows, leases and payloads that are lost."""

    seqs: Ranges = ()
    """Row numbers of experiences."""
    leases: tuple[str, ...] = ()
    """Leases (`run/consumer/step`) that were consumed and whose rows are unknown."""
    payloads: tuple[str, ...] = ()
    """Payload ids that rows refer to."""


def read_lost(root: Path) -> Lost:
    """The record; empty when there is none or it cannot be read (verify then finds the gaps again)."""
    try:
        value = json.loads((root / LOST_ROWS).read_text())
        return Lost(
            tuple((int(first), int(last)) for first, last in value["seqs"]),
            tuple(value.get("leases", ())),
            tuple(value.get("payloads", ())),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Lost()


def write_lost(root: Path, lost: Lost) -> None:
    """Replace the record in one step."""
    value = {
        "seqs": [list(pair) for pair in lost.seqs],
        "leases": list(lost.leases),
        "payloads": list(lost.payloads),
    }
    write_text(root / LOST_ROWS, json.dumps(value))
