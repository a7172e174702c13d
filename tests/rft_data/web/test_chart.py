"""A picture holds the numbers it was made of."""

import math

import numpy as np
import pandas as pd
import pytest

from rft_data.web.chart import HEIGHT, MOST_POINTS, WIDTH, Chart, chart


def heights(path: str) -> list[float]:
    return [float(place.split(",")[1]) for place in path.removeprefix("M").split("L")]


def made(values: list[float], **how: float) -> Chart:
    found = chart("x", range(len(values)), values, **how)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_points_lie_where_their_numbers_are() -> None:
    found = made([3.0, -1.0, math.nan, 1.0])
    assert [(point.step, point.value) for point in found.points] == [(0, 3.0), (1, -1.0), (3, 1.0)]
    assert (found.lowest, found.highest, found.last) == (-1.0, 3.0, 1.0)
    top, bottom, middle = [point.y for point in found.points]
    assert 0 <= top < bottom <= HEIGHT
    assert middle == pytest.approx((top + bottom) / 2, abs=0.1)
    left, _, right = [point.x for point in found.points]
    assert 0 <= left < right <= WIDTH


def test_long_series_are_means_of_stretches() -> None:
    values = np.random.default_rng(0).normal(size=1_001).tolist()
    found = made(values)
    assert len(found.points) <= MOST_POINTS
    assert found.points[0].step == 5
    assert found.points[0].value == pytest.approx(sum(values[:6]) / 6)
    assert found.points[-1].step == 1_000


def test_smoothing_is_the_debiased_moving_average() -> None:
    values = np.random.default_rng(1).uniform(size=40).tolist()
    wanted = pd.Series(values).ewm(alpha=0.3, adjust=True).mean()
    plain = made(values)
    low, high = min(values), max(values)
    bottom, top = max(heights(plain.path)), min(heights(plain.path))
    places = bottom + (wanted - low) / (high - low) * (top - bottom)
    assert heights(made(values, smoothing=0.7).smooth) == pytest.approx(places.tolist(), abs=0.11)


def test_a_log_axis_has_only_positive_numbers() -> None:
    found = made([1.0, 10.0, 0.0, 100.0], log=True)
    low, middle, high = [point.y for point in found.points]
    assert middle == pytest.approx((low + high) / 2, abs=0.1)
    assert chart("x", [0], [-1.0], log=True) is None
    assert chart("x", [], []) is None
