"""A summary of a buffer: rows and files per table, its runs, and a few numbers about its experiences."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.schema import SCHEMA_VERSION, TABLES
from rft_data.core.words import LeaseEvent

_COLUMNS = ["seq", "source", "run_id", "reward", "version_min", "version_max"]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about one table."""

    rows: int
    fragments: int
    versions: int
    """Versions whose files are kept."""
    bytes: int
    """On disk; 0 when the buffer is not in a folder."""
    last_write: datetime | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run that wrote to the buffer."""

    run_id: str
    starts: int
    """How often it was started; 0 when the buffer has only its experiences."""
    experiences: int
    steps_leased: int
    """Optimizer steps for which its consumers have or had a lease."""
    steps_consumed: int
    """Leased steps that a checkpoint contains."""
    newest_version: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Facts about a buffer."""

    location: str
    schema_version: int
    tables: dict[str, TableFacts]
    """By name; only tables that exist."""
    runs: tuple[RunFacts, ...]
    sources: dict[str, int]
    """Experiences by source."""
    scored: int
    """Experiences with a reward."""
    reward_mean: float | None
    """Mean of the effective rewards (`core/effective_reward.py`)."""
    versions: tuple[int, int] | None
    """Lowest and highest policy version that sampled a stored token."""

    def as_json(self) -> dict[str, object]:
        """The fields as plain values, for JSON."""
        return asdict(self)


def overview(buffer: Buffer) -> Overview:
    """The summary of a buffer: one pass over six columns of the experiences, in bounded memory."""
    tables = {name: facts for name in TABLES if (facts := _table_facts(buffer, name)) is not None}
    seen = _Sums(ShapedRewards(buffer))
    for batch in buffer.batches("experiences", _COLUMNS):
        seen.add(batch)
    return Overview(
        location=buffer.location,
        schema_version=SCHEMA_VERSION,
        tables=tables,
        runs=_runs(buffer, seen.runs),
        sources=dict(seen.sources.most_common()),
        scored=seen.scored,
        reward_mean=seen.reward / seen.scored if seen.scored else None,
        versions=None if seen.lowest is None or seen.highest is None else (seen.lowest, seen.highest),
    )


class _Sums:
    """Sums over batches of experiences."""

    def __init__(self, shaped: ShapedRewards) -> None:
        self._shaped = shaped
        self.sources: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.scored = 0
        self.reward = 0.0
        self.lowest: int | None = None
        self.highest: int | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        for name, counter in (("source", self.sources), ("run_id", self.runs)):
            for item in pc.value_counts(batch.column(name)).to_pylist():
                counter[item["values"]] += item["counts"]
        rewards = np.asarray(self._shaped.effective(batch).drop_null(), np.float64)
        self.scored += len(rewards)
        self.reward += float(rewards.sum())
        low, high = pc.min(batch.column("version_min")).as_py(), pc.max(batch.column("version_max")).as_py()
        self.lowest = min((v for v in (self.lowest, low) if v is not None), default=None)
        self.highest = max((v for v in (self.highest, high) if v is not None), default=None)


def _table_facts(buffer: Buffer, name: str) -> TableFacts | None:
    table = buffer.lance(name)
    if table is None:
        return None
    stats = table.stats()
    facts = TableFacts(table.count_rows(), stats["fragment_stats"]["num_fragments"], 0, 0, None)
    if "://" in buffer.location:
        return facts
    folder = Path(buffer.location) / f"{name}.lance"
    files = [file.stat() for file in folder.rglob("*") if file.is_file()]
    manifests = [file.stat().st_mtime for file in (folder / "_versions").glob("*.manifest")]
    written = datetime.fromtimestamp(max(manifests), UTC) if manifests and facts.rows else None
    return replace(facts, versions=len(manifests), bytes=sum(f.st_size for f in files), last_write=written)


def _runs(buffer: Buffer, experiences: Counter[str]) -> tuple[RunFacts, ...]:
    starts = Counter(buffer.read("runs", ["run_id"]).column(0).to_pylist())
    leased: set[tuple[str, str, int]] = set()
    for row in buffer.read("leases", ["kind", "run_id", "consumer", "step"]).to_pylist():
        if row["kind"] == LeaseEvent.GRANT:
            leased.add((row["run_id"], row["consumer"], row["step"]))
    held = Counter(buffer.read("consumed", ["run_id"]).column(0).to_pylist())
    newest: dict[str, int] = {}
    for row in buffer.read("versions", ["run_id", "version"]).to_pylist():
        newest[row["run_id"]] = max(row["version"], newest.get(row["run_id"], row["version"]))
    steps = Counter(run_id for run_id, _, _ in leased)
    return tuple(
        RunFacts(name, starts[name], experiences[name], steps[name], held[name], newest.get(name))
        for name in dict.fromkeys([*starts, *experiences])
        if name
    )
