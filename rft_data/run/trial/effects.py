"""Effects of a pipeline on the rows that pass it: examples of each outcome, and spreads before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.effective_reward import REWARD, SHAPED_REWARD
from rft_data.core.protocols import Pipeline
from rft_data.core.words import Verdict
from rft_data.run.rejudge import StoredVerdicts
from rft_data.run.rejudge.compare import CHANGED

EXAMPLES, BINS = 5, 20
Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Outcome:
    """Rows to which the same happened."""

    what: str
    rows: int = 0
    examples: list[tuple[int, str]] = field(default_factory=list)
    """Row number and reason of the first ones."""


class Watched:
    """A pipeline, and what it did with all rows so far; implements rft_data.core.protocols.Pipeline."""

    def __init__(self, pipeline: Pipeline, stored: StoredVerdicts) -> None:
        self._pipeline, self._stored = pipeline, stored
        self._outcomes: dict[str, Outcome] = {}
        self._before: dict[str, list[Array]] = {}
        self._after: dict[str, list[Array]] = {}

    @property
    def pipeline_hash(self) -> str:
        return self._pipeline.pipeline_hash

    def run(self, experiences: pa.Table) -> pa.Table:
        """Run the pipeline, and note what it did with each row."""
        judged = self._pipeline.run(experiences)
        self._see(experiences, judged)
        return judged

    def metrics(self) -> dict[str, float]:
        """The metrics of the pipeline."""
        return self._pipeline.metrics()

    def close(self) -> None:
        """Close the pipeline."""
        self._pipeline.close()

    def outcomes(self) -> list[Outcome]:
        """Outcomes of rows, most frequent first."""
        return sorted(self._outcomes.values(), key=lambda one: -one.rows)

    def spreads(self) -> dict[str, dict[str, object]]:
        """Counts of values in the same bins: of all rows before, and of the kept ones after."""
        return {name: _spread(self._before[name], self._after[name]) for name in self._before}

    def _see(self, rows: pa.Table, judged: pa.Table) -> None:
        seqs = rows["seq"].to_numpy()
        earlier = self._stored.verdicts(seqs)
        kept = np.asarray(pc.equal(judged["verdict"], Verdict.KEPT))
        reward, shaped = _numbers(rows[REWARD]), _numbers(judged[SHAPED_REWARD])
        effective = np.where(np.isnan(shaped), reward, shaped)
        self._spread("reward", reward, effective[kept])
        self._spread("advantage", _means(earlier["advantage"]), _means(judged["advantage"])[kept])
        lengths = _lengths(rows)
        self._spread("tokens", lengths, lengths[kept])
        reasons = judged["reason"].to_pylist()
        for what, mask in self._masks(
            judged, earlier, kept, ~np.isnan(shaped) & (abs(shaped - reward) > CHANGED)
        ):
            outcome = self._outcomes.setdefault(what, Outcome(what))
            outcome.rows += int(mask.sum())
            for place in np.flatnonzero(mask)[: EXAMPLES - len(outcome.examples)]:
                outcome.examples.append((int(seqs[place]), reasons[place]))

    def _masks(
        self, judged: pa.Table, earlier: pa.Table, kept: Mask, reshaped: Mask
    ) -> Iterator[tuple[str, Mask]]:
        yield "kept", kept
        ends = [f"{one['verdict']} by {one['dropped_by']}" for one in judged.to_pylist()]
        for what in dict.fromkeys(end for end, stays in zip(ends, kept, strict=True) if not stays):
            yield what, np.array([end == what for end in ends]) & ~kept
        before = np.asarray(pc.equal(earlier["verdict"], Verdict.KEPT).fill_null(False))
        was_judged = np.asarray(earlier["verdict"].is_valid())
        yield "kept now, not kept by the stored verdict", kept & was_judged & ~before
        yield "kept by the stored verdict, not now", ~kept & before
        yield "kept with another reward than the stored one", kept & reshaped
        moved = abs(_means(judged["advantage"]) - _means(earlier["advantage"])) > CHANGED
        yield "kept with another advantage than the stored one", kept & before & moved
        yield "kept, its tokens out of the loss", kept & np.asarray(judged["masked"].fill_null(False))

    def _spread(self, name: str, before: Array, after: Array) -> None:
        self._before.setdefault(name, []).append(before[np.isfinite(before)])
        self._after.setdefault(name, []).append(after[np.isfinite(after)])


def _spread(before: list[Array], after: list[Array]) -> dict[str, object]:
    first, second = np.concatenate(before), np.concatenate(after)
    both = np.concatenate([first, second])
    if not len(both):
        return {"edges": [], "before": [], "after": [], "means": [None, None]}
    edges = np.histogram_bin_edges(both, BINS)
    return {
        "edges": edges.tolist(),
        "before": np.histogram(first, edges)[0].tolist(),
        "after": np.histogram(second, edges)[0].tolist(),
        "means": [float(one.mean()) if len(one) else None for one in (first, second)],
    }


def _numbers(column: pa.ChunkedArray) -> Array:
    """Numbers, NaN where null."""
    return np.asarray(column.cast(pa.float64()), np.float64)


def _means(column: pa.ChunkedArray) -> Array:
    """The mean of each list; NaN of none and of an empty one."""
    return np.array([np.mean(one) if one else np.nan for one in column.to_pylist()], np.float64)


def _lengths(rows: pa.Table) -> Array:
    """Tokens of each completion, those of tools too; NaN where the row has none."""
    return _numbers(pc.list_value_length(rows["token_ids"])) - _numbers(rows["prompt_length"])
