"""The near-duplicate operator against a large store: rows a second, and the share of duplicates it finds.

Stored texts are 500 random words. A quarter of the new rows are copies of stored ones with some words
replaced. The reference is the exact Jaccard similarity of Python sets of n-grams.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.rows import RowMaker
from ops.runtime.pipeline import OperatorPipeline
from ops.similarity.shingles import shingles
from ops.similarity.sketches import SIZE, Sketches, SketchIndex, sketches
from rft_data.buffer import Buffer

BATCH = 512
OPERATOR = "rollout_near_dup_deduplicator"
THRESHOLD, N = 0.8, 3
TEXT_WORDS = 500
MOST_CHANGED = 18
"""Replacing 18 of 500 words leaves an exact Jaccard similarity of 0.80."""
CLEAR = THRESHOLD + 2 * (THRESHOLD * (1 - THRESHOLD) / SIZE) ** 0.5
"""From here on the estimate is above the threshold in 99 of 100 cases: two standard errors."""
_WORDS = [f"{first}{last}" for first in "bcdfghklmnprstvw" for last in map(str, range(1000))]
_TEXT = "completion_text"


@dataclass(slots=True)
class Copies:
    """Near-copies of stored rows that were judged."""

    exact: list[float] = field(default_factory=list)
    """Exact similarity of each to its original."""
    found: list[bool] = field(default_factory=list)
    """Whether the operator dropped it as a repeat of its original."""

    def recall(self, least: float) -> float:
        """The share found of those at least so similar."""
        return float(np.mean(self.found, where=np.array(self.exact) >= least))


@dataclass(slots=True)
class Clock:
    """Time that batches take in the pipeline."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of all threads; it says more where other work runs beside."""

    def judge(self, run: OperatorPipeline, batch: pa.Table) -> list[str]:
        """For each row of the batch why it is dropped, or ''."""
        wall, cpu = time.perf_counter(), time.process_time()
        made = run.run(batch)
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu
        return [why or "" for why in made["reason"].to_pylist()]


def measure(stored: int, rows: int) -> dict[str, float]:
    """Figures of the newest `rows` rows, judged in batches against `stored` rows that are judged before."""
    maker, rng = RowMaker(50), np.random.default_rng(0)
    operators = [{OPERATOR: {"scope": "store", "across_tasks": True, "threshold": THRESHOLD, "n": N}}]
    copies = Copies()
    with tempfile.TemporaryDirectory() as folder, Buffer(Path(folder) / "buffer") as buffer:
        for start in range(0, stored, 4096):
            texts = random_texts(min(4096, stored - start), rng)
            buffer.append(_with_texts(maker.table(len(texts)), texts))
        run = OperatorPipeline(operators, name="benchmark", store=buffer)
        first = Clock()
        first.judge(run, buffer.take(range(stored - BATCH, stored)))
        clock = Clock()
        for _ in range(0, rows, BATCH):
            originals = np.sort(rng.choice(stored, BATCH // 4, replace=False))
            said = buffer.take(originals.tolist())[_TEXT].to_pylist()
            near = [changed(text, int(rng.integers(1, MOST_CHANGED + 1)), rng) for text in said]
            texts = [*near, *random_texts(BATCH - len(near), rng)]
            batch = buffer.take(buffer.append(_with_texts(maker.table(BATCH), texts)).seqs)
            reasons = clock.judge(run, batch)
            copies.exact += map(jaccard, said, near)
            copies.found += [f"repeats row {row} " in reasons[place] for place, row in enumerate(originals)]
    return {
        "rows_per_s": rows / clock.wall_s,
        "rows_per_cpu_s": rows / clock.cpu_s,
        "first_rows_per_s": stored / first.wall_s,
        "first_rows_per_cpu_s": stored / first.cpu_s,
        "recall": recall_at_threshold(rows // 4, rng),
        "verdict_recall_clear": copies.recall(CLEAR),
        "verdict_recall_all": copies.recall(THRESHOLD),
    }


def recall_at_threshold(pairs: int, rng: np.random.Generator) -> float:
    """The share that the index compares of pairs whose exact similarity is the threshold, or 0.02 above."""
    said = random_texts(pairs, rng)
    near = [changed(text, MOST_CHANGED - number % 2, rng) for number, text in enumerate(said)]
    exact = np.array(list(map(jaccard, said, near)))
    if exact.min() < THRESHOLD or exact.max() > THRESHOLD + 0.02:
        raise RuntimeError(f"similarities are {exact.min():.3f} to {exact.max():.3f}; wanted 0.80 to 0.82")
    index, labels = SketchIndex(THRESHOLD), np.zeros(pairs, np.uint64)
    index.restore(_sketches(said), labels)
    row, place = index.candidates(_sketches(near), labels)
    return float(np.mean(np.isin(np.arange(pairs), row[row == place])))


def _with_texts(table: pa.Table, texts: list[str]) -> pa.Table:
    return table.set_column(table.column_names.index(_TEXT), _TEXT, pa.array(texts))


def _sketches(texts: list[str]) -> Sketches:
    return sketches(shingles(pa.table({_TEXT: texts}), _TEXT, N))


def random_texts(count: int, rng: np.random.Generator) -> list[str]:
    """Texts of random words, each its own."""
    picked = rng.integers(0, len(_WORDS), (count, TEXT_WORDS)).tolist()
    return [" ".join(map(_WORDS.__getitem__, numbers)) for numbers in picked]


def changed(text: str, count: int, rng: np.random.Generator) -> str:
    """The text with `count` words replaced, no two of them in one n-gram."""
    words = text.split()
    for place in rng.choice(len(words) // N, count, replace=False) * N + N // 2:
        words[place] = f"x{rng.integers(1 << 30)}"
    return " ".join(words)


def jaccard(one: str, other: str) -> float:
    """The exact similarity of the texts' sets of n-grams."""
    left, right = _grams(one.split()), _grams(other.split())
    return len(left & right) / len(left | right)


def _grams(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[place : place + N]) for place in range(len(words) - N + 1)}
