"""A series of numbers as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 300, 110
_LEFT, _RIGHT, _TOP, _BOTTOM = 6, 6, 14, 14
MOST_POINTS = 200
"""Points of a picture: of longer series, the mean of each stretch."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a series and of its picture."""

    step: int
    value: float
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a series, ready to be drawn."""

    name: str
    points: tuple[Point, ...]
    lowest: float
    highest: float
    smooth: str
    """The moving average as an SVG path; empty where none is asked for."""

    @property
    def path(self) -> str:
        """The series as an SVG path."""
        return _path([(point.x, point.y) for point in self.points])

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1].value


def chart(
    name: str, steps: Sequence[int], values: Sequence[float], *, smoothing: float = 0.0, log: bool = False
) -> Chart | None:
    """The picture of finite numbers (on a log axis: positive ones); None where there is none.

    Args: smoothing: weight of the past in the exponential moving average, 0 (none) to 1, as TensorBoard's.
    """
    pairs = finite(list(zip(steps, values, strict=True)), log=log)
    if not pairs:
        return None
    pairs = _thinned(pairs)
    shown = [math.log10(value) if log else value for _, value in pairs]
    axes = _Axes(pairs[0][0], pairs[-1][0], min(shown), max(shown))
    points = tuple(
        Point(step, value, *axes.place(step, height))
        for (step, value), height in zip(pairs, shown, strict=True)
    )
    smooth = ""
    if smoothing:
        smoothed = averages(shown, smoothing)
        smooth = _path([axes.place(step, value) for (step, _), value in zip(pairs, smoothed, strict=True)])
    raw = [value for _, value in pairs]
    return Chart(name, points, min(raw), max(raw), smooth)


@dataclass(frozen=True, slots=True)
class Line:
    """One of several series in a picture."""

    name: str
    path: str
    last: float
    """Its newest value."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """Several series on the same axes."""

    name: str
    lines: tuple[Line, ...]
    lowest: float
    highest: float
    last_step: int


def overlay(name: str, series: Mapping[str, Sequence[tuple[int, float]]]) -> Overlay | None:
    """Finite numbers of several series, by step, on the same axes; None where none has any."""
    drawn = {key: _thinned(kept) for key, pairs in series.items() if (kept := finite(pairs))}
    if not drawn:
        return None
    steps = [step for pairs in drawn.values() for step, _ in pairs]
    values = [value for pairs in drawn.values() for _, value in pairs]
    axes = _Axes(min(steps), max(steps), min(values), max(values))
    lines = tuple(
        Line(key, _path([axes.place(*pair) for pair in pairs]), pairs[-1][1]) for key, pairs in drawn.items()
    )
    return Overlay(name, lines, axes.low, axes.high, axes.last)


def finite(pairs: Sequence[tuple[int, float]], *, log: bool = False) -> list[tuple[int, float]]:
    """The pairs that can be drawn: finite, on a log axis also positive."""
    return [(step, value) for step, value in pairs if math.isfinite(value) and (value > 0 or not log)]


def averages(values: Sequence[float], weight: float) -> list[float]:
    """Exponential moving averages, debiased by 1 - weight^n."""
    found, average = [], 0.0
    for number, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        found.append(average / (1 - weight**number))
    return found


@dataclass(frozen=True, slots=True)
class _Axes:
    first: int
    last: int
    low: float
    high: float

    def place(self, step: int, value: float) -> tuple[float, float]:
        """Position of a number in the picture, in its units from the upper left corner."""
        across = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        up = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        x = _LEFT + across * (WIDTH - _LEFT - _RIGHT)
        y = HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)
        return round(x, 1), round(y, 1)


def _thinned(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most MOST_POINTS of them: the last step of each stretch, with the mean of the stretch."""
    size = -(-len(pairs) // MOST_POINTS)
    stretches = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    return [(one[-1][0], sum(value for _, value in one) / len(one)) for one in stretches]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in places)
