"""The records of one chunk of rows that an import reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rft_data.core.rows import Experience, Feedback, PreferencePair, Task
from rft_data.exchange.formats.jsonlines import Found
from rft_data.exchange.formats.records import Record, StoredRow

_EXCERPT = 4096
_Name = TypeVar("_Name")


@dataclass(slots=True)
class Chunk:
    """The records of one chunk, each with the place of its row in the chunk."""

    tasks: list[tuple[int, Task]] = field(default_factory=list)
    pairs: list[tuple[int, PreferencePair]] = field(default_factory=list)
    experiences: list[tuple[int, Experience | StoredRow]] = field(default_factory=list)
    feedback: list[tuple[int, Feedback]] = field(default_factory=list)
    bad: dict[int, tuple[str, str]] = field(default_factory=dict)
    """(reason, experience id) by place."""

    def add(self, place: int, records: Sequence[Record]) -> None:
        """Sort in the records of one row."""
        for record in records:
            if isinstance(record, Task):
                self.tasks.append((place, record))
            elif isinstance(record, PreferencePair):
                self.pairs.append((place, record))
            elif isinstance(record, Feedback):
                self.feedback.append((place, record))
            else:
                self.experiences.append((place, record))

    def drop(self, place: int, reason: str, experience_id: str = "") -> None:
        """Mark a row as bad, and drop all its records: a row is stored whole or not at all."""
        self.bad.setdefault(place, (reason, experience_id))
        self.tasks = [item for item in self.tasks if item[0] != place]
        self.pairs = [item for item in self.pairs if item[0] != place]
        self.feedback = [item for item in self.feedback if item[0] != place]


def unseen(named: Iterator[tuple[int, _Name]], known: set[_Name]) -> set[int]:
    """The places whose name is not in `known`; adds the names to `known`."""
    fresh = set()
    for place, name in named:
        if name not in known:
            known.add(name)
            fresh.add(place)
    return fresh


def excerpt(found: Found) -> str:
    """The beginning of a row, as ASCII text."""
    return (found.excerpt if found.row is None else json.dumps(found.row, default=ascii))[:_EXCERPT]
