"""Counts what each operator of a pipeline did, and keeps the first rows that it lost, for the run's log."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from ops.runtime.annotations import OperatorReport
from rft_data.core.words import Verdict

SAMPLES = 5
"""Number of lost rows per operator that the run's log shows."""


@dataclass(frozen=True, slots=True)
class LostRow:
    """An experience that an operator dropped or failed on."""

    experience_id: str
    verdict: Verdict
    """`kept` for a row that was kept although the operator failed on it."""
    reason: str


class OperatorCounts:
    """Sums over all batches since they were last taken."""

    def __init__(self) -> None:
        self._metrics: defaultdict[str, float] = defaultdict(float)
        self._samples: defaultdict[str, list[LostRow]] = defaultdict(list)

    def add(self, report: OperatorReport) -> None:
        """Count what an operator did with one batch."""
        self._metrics[f"{report.name}/rows_in"] += report.rows_in
        self._metrics[f"{report.name}/rows_out"] += report.rows_out
        self._metrics[f"{report.name}/quarantined"] += len(report.quarantined)
        self._metrics[f"{report.name}/unjudged"] += len(report.unjudged)
        self._metrics[f"{report.name}/seconds"] += report.seconds

    def add_samples(self, report: OperatorReport, experience_ids: pa.ChunkedArray) -> None:
        """Keep some of the rows that an operator dropped or failed on, at most SAMPLES of each operator."""
        for verdict, rows in {**report.lost, Verdict.KEPT: report.unjudged}.items():
            room = SAMPLES - len(self._samples.get(report.name, ()))
            for row, reason in islice(rows.items(), max(0, room)):
                self._samples[report.name].append(LostRow(experience_ids[row].as_py(), verdict, reason))

    def take_metrics(self) -> dict[str, float]:
        """The counts by `<operator>/<count>`, and `<operator>/keep_rate` where it got rows; then from 0."""
        metrics, self._metrics = dict(self._metrics), defaultdict(float)
        for key in [key for key, rows in metrics.items() if key.endswith("/rows_in") and rows]:
            operator = key.removesuffix("/rows_in")
            metrics[f"{operator}/keep_rate"] = metrics[f"{operator}/rows_out"] / metrics[key]
        return metrics

    def take_samples(self) -> dict[str, list[LostRow]]:
        """The kept rows by operator; then none are kept."""
        samples, self._samples = dict(self._samples), defaultdict(list)
        return samples
