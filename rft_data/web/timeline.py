"""The time line of a row, as a picture: each stored time from its sampling to its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare
from rft_data.core.words import LeaseEvent
from rft_data.reading.lineage_parts import Lineage

WIDTH = 600
_EDGE = 8
MOST_MOMENTS = 40


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a row."""

    what: str
    at: datetime
    after_s: float
    """Seconds after the one before; 0 for the first."""
    x: float
    """Its place in the picture."""


def timeline(buffer: Buffer, line: Lineage, made_at: datetime) -> list[Moment]:
    """Stored events of a row, oldest first; at most 40 moments."""
    found = [(made_at, "sampled and scored"), *_judged(buffer, line), *_closed(buffer, line)]
    found += [*_published(buffer, line), *_leased(buffer, line), *_held(buffer, line)]
    found += [(one["created_at"], f"{one['key']} by {one['author']}") for one in line.feedback]
    found = sorted(found, key=lambda pair: pair[0])[:MOST_MOMENTS]
    first, last = found[0][0], found[-1][0]
    whole = (last - first).total_seconds()
    moments: list[Moment] = []
    for at, what in found:
        share = (at - first).total_seconds() / whole if whole else 0.0
        before = moments[-1].at if moments else at
        place = round(_EDGE + share * (WIDTH - 2 * _EDGE), 1)
        moments.append(Moment(what, at, (at - before).total_seconds(), place))
    return moments


_Times = list[tuple[datetime, str]]


def _judged(buffer: Buffer, line: Lineage) -> _Times:
    own = Compare("seq", "eq", line.experience["seq"])
    rows = buffer.read("annotations", ["created_at", "verdict"], own).to_pylist()
    return [(row["created_at"], f"judged: {row['verdict']}") for row in rows]


def _closed(buffer: Buffer, line: Lineage) -> _Times:
    own = Compare("group_id", "eq", line.experience["group_id"])
    rows = buffer.read("groups", ["created_at", "outcome"], own).to_pylist()
    return [(row["created_at"], f"its group closed: {row['outcome']}") for row in rows]


def _published(buffer: Buffer, line: Lineage) -> _Times:
    """The versions that sampled it."""
    if not line.sampled_by:
        return []
    low, high = line.sampled_by[0].version, line.sampled_by[-1].version
    own = Compare("run_id", "eq", line.experience["run_id"])
    span = And((own, Compare("version", "ge", low), Compare("version", "le", high)))
    rows = buffer.read("versions", ["created_at", "version"], span).to_pylist()
    return [(row["created_at"], f"policy version {row['version']} published") for row in rows]


def _leased(buffer: Buffer, line: Lineage) -> _Times:
    found: _Times = []
    for use in line.uses:
        own = And(
            (
                Compare("run_id", "eq", use.run_id),
                Compare("consumer", "eq", use.consumer),
                Compare("step", "eq", use.step),
            )
        )
        for row in buffer.read("leases", ["created_at", "kind"], own).to_pylist():
            word = "leased for" if row["kind"] == LeaseEvent.GRANT else f"{row['kind']} of"
            found.append((row["created_at"], f"{word} step {use.step} of {use.consumer}"))
    return found


def _held(buffer: Buffer, line: Lineage) -> _Times:
    found: _Times = []
    for use in line.uses:
        if use.checkpoint_step is not None:
            own = Compare("lease_id", "eq", f"{use.run_id}/{use.consumer}/{use.step}")
            rows = buffer.read("consumed", ["created_at", "checkpoint_step"], own).to_pylist()
            found += [(row["created_at"], f"in checkpoint {row['checkpoint_step']}") for row in rows]
    return found
