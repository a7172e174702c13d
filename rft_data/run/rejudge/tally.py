"""Counts of each operator of a list over many batches: rows in and out, seconds, why it dropped them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.words import Verdict

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_KINDS = 1000
"""Kinds of reasons kept for one operator; further ones are counted together."""
_OTHERS = "other reasons"
SHOWN_REASONS = 5


@dataclass(frozen=True, slots=True)
class Reason:
    """The reasons by which an operator dropped rows."""

    kind: str
    """The reason, with `#` instead of every number."""
    rows: int
    example: str
    """The first such reason as it was given."""


@dataclass(frozen=True, slots=True)
class OperatorTally:
    """One operator over all batches. Rows in = out + dropped + quarantined."""

    name: str
    rows_in: int
    rows_out: int
    dropped: int
    quarantined: int
    seconds: float
    reasons: tuple[Reason, ...]
    """The most frequent ones, at most SHOWN_REASONS."""

    @property
    def keep_rate(self) -> float | None:
        """Share of its rows that went on; None when it was given none."""
        return self.rows_out / self.rows_in if self.rows_in else None


class Tally:
    """Counts the annotations of one pipeline."""

    def __init__(self) -> None:
        self.rows = 0
        self.verdicts: Counter[str] = Counter()
        self._by: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[str, Counter[str]] = {}
        self._examples: dict[tuple[str, str], str] = {}

    def add(self, annotations: pa.Table) -> None:
        """Count a batch."""
        self.rows += annotations.num_rows
        for (named,), count in _counts(annotations, ["verdict"]):
            self.verdicts[named] += count
        lost = annotations.filter(pc.not_equal(annotations.column("verdict"), Verdict.KEPT))
        for (operator, verdict, reason), count in _counts(lost, ["dropped_by", "verdict", "reason"]):
            self._by[operator, verdict] += count
            counted = self._reasons.setdefault(operator, Counter())
            kind = _NUMBER.sub("#", reason)
            if kind not in counted and len(counted) >= _KINDS:
                kind = _OTHERS
            counted[kind] += count
            self._examples.setdefault((operator, kind), reason)

    def operators(self, metrics: Mapping[str, float]) -> tuple[OperatorTally, ...]:
        """One tally for each operator, in the order of the list; `metrics` as the pipeline counted them."""
        names = [key.removesuffix("/rows_in") for key in metrics if key.endswith("/rows_in")]
        return tuple(self._operator(name, metrics) for name in names)

    def _operator(self, name: str, metrics: Mapping[str, float]) -> OperatorTally:
        reasons = self._reasons.get(name, Counter[str]()).most_common(SHOWN_REASONS)
        return OperatorTally(
            name=name,
            rows_in=int(metrics[f"{name}/rows_in"]),
            rows_out=int(metrics[f"{name}/rows_out"]),
            dropped=self._by[name, Verdict.DROPPED],
            quarantined=self._by[name, Verdict.QUARANTINED],
            seconds=metrics[f"{name}/seconds"],
            reasons=tuple(Reason(kind, rows, self._examples[name, kind]) for kind, rows in reasons),
        )


def _counts(table: pa.Table, columns: list[str]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Distinct values of some text columns, in the order they first come, and how often each comes."""
    grouped = table.select(columns).group_by(columns, use_threads=False).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        yield tuple(row[name] for name in columns), row["count_all"]
