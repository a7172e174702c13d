"""Savings in records of cells: rollouts against the uniform choice, with bootstrap intervals.

Everything is recomputed from the raw records; a cell that did not reach the target counts with what it spent,
so that its ratio is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.selectors.world import Floats

_RESAMPLES = 10_000
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times fewer, with the 95 % interval of a bootstrap over seeds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(uniform: Mapping[int, float], other: Mapping[int, float]) -> Ratio | None:
    """Mean of `uniform` over mean of `other`, by the seeds that both have (resampled in pairs).

    None when they share no seed. With few seeds the interval is narrow for what it claims: it is the spread
    of the means, not a test.
    """
    seeds = sorted(set(uniform) & set(other))
    if not seeds:
        return None
    pairs = np.array([[uniform[seed], other[seed]] for seed in seeds], dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(seeds), size=(_RESAMPLES, len(seeds)))
    means: Floats = pairs[drawn].mean(axis=1)
    low, high = np.quantile(means[:, 0] / means[:, 1], [0.025, 0.975])
    first, second = pairs.mean(axis=0)
    return Ratio(float(first / second), float(low), float(high))


def by_seed(rows: Sequence[Row], column: str, **cell: Any) -> dict[int, float]:
    """`column` of the records of one kind of cell, by seed; None values are left out."""
    mine = (row for row in rows if all(row[key] == value for key, value in cell.items()))
    return {row["seed"]: row[column] for row in mine if row[column] is not None}


def saving(rows: Sequence[Row], selector: str, **cell: Any) -> Ratio | None:
    """Rollouts of `uniform` over those of `selector`; None when one of them was not run."""
    return ratio(
        by_seed(rows, "rollouts", selector="uniform", **cell),
        by_seed(rows, "rollouts", selector=selector, **cell),
    )


def best(
    rows: Sequence[Row], selectors: Sequence[str], cells: Sequence[Mapping[str, Any]]
) -> tuple[str, float]:
    """The selector with the highest worst ratio over `cells`, and that ratio; ("", 0.0) if there is none."""
    worst: dict[str, float] = {}
    for selector in selectors:
        found = [saving(rows, selector, **cell) for cell in cells]
        if all(found):
            worst[selector] = min(one.value for one in found if one is not None)
    return max(worst.items(), key=lambda item: item[1], default=("", 0.0))


def share_of_saving(rows: Sequence[Row], selector: str, oracle: str, **cell: Any) -> float:
    """1 - 1/ratio of `selector` over that of `oracle`; 0.0 if one did not run or the oracle saves nothing."""
    mine, most = saving(rows, selector, **cell), saving(rows, oracle, **cell)
    if mine is None or most is None or most.value <= 1:
        return 0.0
    return (1 - 1 / mine.value) / (1 - 1 / most.value)


def cell_mean(rows: Sequence[Row], column: str, **cell: Any) -> float:
    """Mean of a column over seeds; NaN when there is none."""
    found = by_seed(rows, column, **cell)
    return float(np.mean(list(found.values()))) if found else float("nan")


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [list(header), ["---"] * len(header), *map(list, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def summary(
    rows: Sequence[Row], selectors: Sequence[str], show: Mapping[str, Callable[[float], str]], **cell: Any
) -> str:
    """Per selector: columns of `show` as means, how many reached the target, and the ratio to uniform."""
    lines = []
    for selector in selectors:
        mine = [row for row in rows if row["selector"] == selector]
        mine = [row for row in mine if all(row[key] == value for key, value in cell.items())]
        if mine:
            means = [_shown(cell_mean(mine, column), form) for column, form in show.items()]
            reached = f"{sum(bool(row['reached']) for row in mine)} of {len(mine)}"
            lines.append([selector, *means, reached, str(saving(rows, selector, **cell) or "")])
    return table(["selector", *show, "reached", "uniform's rollouts / its [95 %]"], lines)


def _shown(value: float, form: Callable[[float], str]) -> str:
    return "" if np.isnan(value) else form(value)


def calibration(rows: Sequence[Row], selector: str, **cell: Any) -> str:
    """Predicted and realised pass rate by tenth of the prediction, all seeds together."""
    mine = [row for row in rows if row["selector"] == selector and row["calibration"] is not None]
    mine = [row for row in mine if all(row[key] == value for key, value in cell.items())]
    if not mine:
        return ""
    bins = np.zeros((10, 3))
    for tenth in (tenth for row in mine for tenth in row["calibration"]):
        groups, predicted, realised = (tenth[name] for name in ("groups", "predicted", "realised"))
        bins[min(int(10 * predicted), 9)] += (groups, groups * predicted, groups * realised)
    lines = [
        [f"{i / 10:.1f} to {(i + 1) / 10:.1f}", f"{int(n)}", f"{predicted / n:.3f}", f"{realised / n:.3f}"]
        for i, (n, predicted, realised) in enumerate(bins)
        if n
    ]
    return table(["predicted", "groups", "mean predicted", "mean realised"], lines)
