"""Pass rates as policy ability + category level + task offset, in logits, or of an unsolvable task.

A Rasch model (one-parameter item response) with three levels. Ability and levels are Gaussian and move by
a Laplace step per group; a task's offset has weights on a grid, exact by Bayes' rule, and so has the chance
that it is unsolvable (a wrong answer, a broken verifier). The heavy tails matter: no sum of small steps
explains a task that never passes in a category that mostly does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from rft_data.tasks.selectors.categories import Categories
from rft_data.tasks.selectors.columns import Columns, Kinds

_GRID = (-4.0, -2.5, -1.2, 0.0, 1.2, 2.5, 4.0)
"""Offsets in logits."""
_PRIOR = (0.03, 0.08, 0.21, 0.26, 0.21, 0.08, 0.03, 0.10)
"""Initial weights of the offsets, and of an unsolvable task; later learned from first visits."""
OFFSETS: Kinds = {"weights": (np.float32, (0.0,) * len(_PRIOR)), "heard": (np.int32, 0)}
"""Weights as in `_PRIOR` after the last group, and the group count then (0: the prior holds)."""

_FIRST = 2.25
"""Initial variance of ability and of category levels (squared logits)."""
_LUCK = 0.04
"""Pass rate of an unsolvable task: verifiers err."""
_KNOWN = 0.5
"""The prior learns from a first visit only where the variance of the level is smaller."""
_PRIOR_VISITS = 100
"""Weight of the initial prior, in first visits."""
_FADE = 1e-5
"""Share by which a group fades what is known of every task, so that no task is ruled out for ever."""
_LONGEST = 1.5
"""Largest move of ability plus level by one group, in logits."""
_FARTHEST = 8.0
"""Levels are clipped to this many logits."""
_PROBIT = math.pi / 8


class _View(NamedTuple):
    """One task at one moment."""

    code: int
    heard: int
    level: float
    """Variance of its category's level."""
    weights: list[float]
    rates: list[float]


class RaschFilter:
    """The state of the model; weights per task are in the selector's columns (`OFFSETS`)."""

    def __init__(self, *, drift: float) -> None:
        """`drift`: variance that a group adds to ability and other categories' levels (squared logits)."""
        self._drift = drift
        self._groups = 0
        self._ability = [0.0, _FIRST]
        self._levels: list[list[float]] = []
        """Mean, variance and group count at the last move, per category."""
        self._prior = list(_PRIOR)
        self._visits = 0
        """Number of first visits that the prior was learned from."""
        self._looked_at = (-1, -1)

    def fit(self, categories: Categories, columns: Columns) -> None:
        """Use these categories; levels of known categories are kept."""
        self._categories = categories
        self._columns = columns
        self._levels += [[0.0, _FIRST, 0.0] for _ in range(len(categories) - len(self._levels))]

    def levels(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of ability + level of each category, in logits."""
        mean, variance, at = np.array(self._levels).T
        grown = np.minimum(variance + self._drift * (self._groups - at), _FIRST)
        return self._ability[0] + mean, self._ability[1] + grown

    def fresh(self, mean: np.ndarray, variance: np.ndarray | float = 0.0) -> np.ndarray:
        """Expected learnability of an unvisited task, in categories with these levels."""
        found: np.ndarray = _by_offset(mean, variance) @ np.array(self._prior)
        return found

    def values(self, places: np.ndarray) -> np.ndarray:
        """Expected learnability of visited tasks."""
        by_offset = _by_offset(*self.levels())
        weights = self._columns["weights"][places]
        faded = (_FADE * (self._groups - self._columns["heard"][places]))[:, None]
        weights = weights + np.minimum(faded, 0.5) * (np.array(self._prior) - weights)
        found: np.ndarray = np.einsum("ij,ij->i", weights, by_offset[self._categories.codes[places]])
        return found

    def predict(self, place: int) -> float:
        """Expected pass rate of one task."""
        view = self._look(place)
        return float(sum(map(mul, view.weights, view.rates)))

    def learn(self, place: int, passes: float, n: int) -> None:
        """Learn from a group of n rollouts, of which `passes` passed (partial credit counts in part)."""
        view, fails = self._look(place), n - passes
        joint = [w * p**passes * (1.0 - p) ** fails for w, p in zip(view.weights, view.rates, strict=True)]
        total = sum(joint)
        if not total:  # so many rollouts that all likelihoods underflow
            return
        after = [weight / total for weight in joint]
        if not view.heard and self._ability[1] + view.level < _KNOWN:
            self._visits += 1
            share = 1.0 / (_PRIOR_VISITS + self._visits)
            self._prior = [w + share * (a - w) for w, a in zip(self._prior, after, strict=True)]
        self._groups += 1
        self._columns["weights"][place] = after
        self._columns["heard"][place] = self._groups
        self._move(view.code, view.level, *_slopes(after, view.rates, passes, n))

    def _move(self, code: int, level: float, slope: float, bend: float) -> None:
        """A Laplace step of ability and level; `slope` and `bend` of the log likelihood by their sum."""
        ability = self._ability[1]
        total = ability + level
        step = slope / (1.0 + total * bend)
        step = min(max(step, -_LONGEST / total), _LONGEST / total)
        known = bend / (1.0 + total * bend)
        self._ability = [
            self._ability[0] + ability * step,
            min(ability * (1.0 - known * ability) + self._drift, _FIRST),
        ]
        moved = self._levels[code][0] + level * step
        self._levels[code] = [moved, level * (1.0 - known * level), float(self._groups)]

    def _look(self, place: int) -> _View:
        """The model's current view of one task."""
        if (place, self._groups) != self._looked_at:  # predict and learn look at the same task
            heard, code = self._columns["heard"].item(place), self._categories.codes.item(place)
            level = self._level_variance(code)
            weights = self._prior
            if heard:
                weights = self._columns["weights"][place].tolist()
                faded = min(_FADE * (self._groups - heard), 0.5)
                if faded > 0.01:  # less is not worth the time, since this runs for every group
                    weights = [w + faded * (p - w) for w, p in zip(weights, self._prior, strict=True)]
            self._view = _View(code, heard, level, weights, self._rates(code, level))
            self._looked_at = place, self._groups
        return self._view

    def _rates(self, code: int, level: float) -> list[float]:
        """Pass rate in a category at each offset, and of an unsolvable task."""
        scale = -1.0 / math.sqrt(1.0 + _PROBIT * (self._ability[1] + level))
        mean = min(max(self._ability[0] + self._levels[code][0], -_FARTHEST), _FARTHEST)
        rates = [1.0 / (1.0 + math.exp(scale * (mean + offset))) for offset in _GRID]
        rates.append(_LUCK)
        return rates

    def _level_variance(self, code: int) -> float:
        _, variance, at = self._levels[code]
        return min(variance + self._drift * (self._groups - at), _FIRST)

    def state_dict(self) -> dict[str, object]:
        """Ability, levels by name of category, the prior, and the number of groups."""
        return {
            "groups": self._groups,
            "ability": list(self._ability),
            "levels": dict(zip(self._categories.names, map(list, self._levels), strict=True)),
            "prior": [self._visits, *self._prior],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._groups, self._ability = int(state["groups"]), [float(x) for x in state["ability"]]
        saved = state["levels"]
        self._levels = [list(saved.get(name, (0.0, _FIRST, 0.0))) for name in self._categories.names]
        self._visits, *self._prior = state["prior"]
        self._looked_at = (-1, -1)

    def metrics(self) -> dict[str, float]:
        """Expected pass rate of an unvisited task by category; the prior share of unsolvable tasks."""
        rates = {}
        for code, name in enumerate(self._categories.names):
            rates[f"pass_rate/{name}"] = sum(
                map(mul, self._prior, self._rates(code, self._level_variance(code)))
            )
        return {**rates, "unsolvable": self._prior[-1]}


def learnability(mean: np.ndarray, variance: np.ndarray | float) -> np.ndarray:
    """E[p(1 - p)] for logit(p) ~ N(mean, variance), by the probit approximation: k p (1 - p).

    k = 1 / sqrt(1 + pi variance / 8) and p = sigmoid(k mean); within 0.015 of the integral.
    """
    scale = 1.0 / np.sqrt(1.0 + _PROBIT * variance)
    half = np.tanh(0.5 * scale * mean)
    found: np.ndarray = scale * 0.25 * (1.0 - half * half)
    return found


def _by_offset(mean: np.ndarray, variance: np.ndarray | float) -> np.ndarray:
    """Learnability at each offset (last axis); that of an unsolvable task is 0."""
    spread = np.asarray(variance)[..., None] if np.ndim(variance) else variance
    found = np.zeros((*mean.shape, len(_PRIOR)))
    found[..., :-1] = learnability(mean[..., None] + np.array(_GRID), spread)
    return found


def _slopes(weights: Sequence[float], rates: Sequence[float], passes: float, n: int) -> tuple[float, float]:
    """First and negative second derivative of the log likelihood by the level (Louis 1982).

    The second is kept at least a quarter of what it would be with the offset known.
    """
    solvable = 1.0 - weights[-1]
    weighted = list(map(mul, weights[:-1], rates))
    mean, square = sum(weighted), sum(map(mul, weighted, rates))
    slope = passes * solvable - n * mean
    bend = n * (mean - square)
    unsure = passes * passes * solvable - 2.0 * passes * n * mean + n * n * square - slope * slope
    return slope, max(bend - unsure, 0.25 * bend)
