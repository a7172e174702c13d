"""Contenders that take turns of short slices, so that what else the machine does then meets all of them.

A round is one slice of each, in an order that alternates (ABBA). Compared is the ratio within a round;
its value is the median over the rounds, with a bootstrap interval.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Cost:
    """Time that one slice took."""

    rows: int
    wall_s: float
    cpu_s: float
    """Of all threads of this process."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.wall_s


def cost(rows: int, act: Callable[[], object]) -> Cost:
    """Time that `act` takes, which handles so many rows."""
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return Cost(rows, time.perf_counter() - wall, time.process_time() - cpu)


def take_turns(contenders: Mapping[str, Callable[[int], Cost]], rounds: int) -> dict[str, list[Cost]]:
    """Times of each contender's slices, by round; each is given the number of its slice, from 0.

    A round before the first warms up and is not counted: there are `rounds` + 1 slices of each.
    """
    found: dict[str, list[Cost]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            found[name].append(contenders[name](number))
    return {name: costs[1:] for name, costs in found.items()}


def medians(costs: Mapping[str, Sequence[Cost]]) -> dict[str, float]:
    """`rows_per_s, NAME` and `cpu_us, NAME` (a row) of each contender."""
    return {
        f"{figure}, {name}": statistics.median(values)
        for name, slices in costs.items()
        for figure, values in (
            ("rows_per_s", [one.rate for one in slices]),
            ("cpu_us", [one.cpu_s / one.rows * 1e6 for one in slices]),
        )
    }


def ratio(ours: Sequence[Cost], theirs: Sequence[Cost]) -> tuple[float, float, float]:
    """How many times as fast ours is: the median over the rounds, and its interval's ends."""
    ratios = [one.rate / other.rate for one, other in zip(ours, theirs, strict=True)]
    return (statistics.median(ratios), *interval(ratios))


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of medians of rounds drawn with replacement."""
    drawn = np.random.default_rng(0).choice(np.asarray(ratios), (_DRAWS, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def figures_of(ours: str, costs: Mapping[str, Sequence[Cost]], *terms: str) -> dict[str, float]:
    """Medians, and ratios of `ours`, as `FIGURE, TERMS, NAME`."""
    found = (medians(costs) | ratios_to(ours, costs)).items()
    return {key.replace(", ", ", ".join(("", *terms, "")), 1): value for key, value in found}


def ratios_to(ours: str, costs: Mapping[str, Sequence[Cost]]) -> dict[str, float]:
    """`ratio, NAME`, `ratio_low, NAME` and `ratio_high, NAME` of `ours` to every other contender."""
    return {
        f"{figure}, {name}": value
        for name, theirs in costs.items()
        if name != ours
        for figure, value in zip(
            ("ratio", "ratio_low", "ratio_high"), ratio(costs[ours], theirs), strict=True
        )
    }
