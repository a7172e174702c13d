"""The outside ledger: what the children say happened, in a file beside the buffer and never inside it.

Every note is one `write` to a file opened for appending, so it survives the death of whoever wrote it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEDGER_FILE = "outside.jsonl"


class Notes:
    """Writes notes; from many threads and processes at once."""

    def __init__(self, root: Path) -> None:
        """Append to the ledger of the life at `root`."""
        self._file = os.open(root / LEDGER_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, kind: str, **facts: Any) -> None:
        """Write one note. The line break before it keeps it readable behind a note a kill cut short."""
        os.write(self._file, f"\n{json.dumps({'kind': kind, **facts})}\n".encode())


@dataclass
class Facts:
    """The outside ledger, read."""

    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Every group that was about to be sent, by id."""
    acked: dict[str, list[int]] = field(default_factory=dict)
    """Row numbers of every acknowledged group."""
    delivered: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The lease last handed out for each step and not given back since."""
    trained: list[dict[str, Any]] = field(default_factory=list)
    """Every gradient step taken, also those that no checkpoint kept."""
    sealed: int = 0
    """Steps of the newest checkpoint known to be complete."""
    versions: list[int] = field(default_factory=list)
    """Policy versions in the order they were issued."""
    epochs: list[int] = field(default_factory=list)
    """Epochs in the order they were given."""
    faults: list[str] = field(default_factory=list)
    """Faults that a child itself found."""

    @property
    def unacked(self) -> list[dict[str, Any]]:
        """Groups whose fate their writer does not know."""
        return [group for group_id, group in self.groups.items() if group_id not in self.acked]

    def take(self, kind: str, note: dict[str, Any]) -> None:
        """Add one note."""
        if kind == "group":
            self.groups[note["group_id"]] = note
        elif kind == "acked":
            if self.acked.setdefault(note["group_id"], note["seqs"]) != note["seqs"]:
                self.faults.append(f"group '{note['group_id']}' was acknowledged under other row numbers")
        elif kind == "trained":
            self.trained.append(note)
        elif kind == "leased":
            if self.delivered.setdefault(note["step"], note) != note:
                self.faults.append(f"the lease of step {note['step']} came again with other rows")
        elif kind == "released":
            self.delivered.pop(note["step"], None)
        elif kind == "fault":
            self.faults.append(note["what"])
        else:
            self._take_number(kind, note)

    def _take_number(self, kind: str, note: dict[str, Any]) -> None:
        if kind == "sealed":
            self.sealed = max(self.sealed, note["step"])
        elif kind == "version":
            self.versions.append(note["version"])
        else:
            self.epochs.append(note["epoch"])


def read_facts(root: Path) -> Facts:
    """Everything noted so far."""
    facts = Facts()
    for note in _notes(root / LEDGER_FILE):
        facts.take(note.pop("kind"), note)
    return facts


def _notes(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        try:
            note = json.loads(line)
        except ValueError:
            continue  # empty, or cut short by a kill: what it would have said did not happen
        yield note
