"""How far several authors agree: Cohen's kappa for two (Educ. Psychol. Meas. 20, 1960), else Krippendorff's
alpha (Computing Krippendorff's Alpha-Reliability, 2011), which allows for answers that are missing.

1: they always agree. 0: as often as by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rft_data.core.words import FeedbackKey
from rft_data.exchange.standing import Word

COMPARED = (FeedbackKey.PREFERRED, FeedbackKey.THUMB, FeedbackKey.SCORE)
"""Keys under which several authors say something about one thing."""
Answers = Mapping[str, float]
"""Author to answer, about one unit."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the authors agree under one key."""

    key: str
    authors: tuple[str, ...]
    """The authors who share a unit with another author."""
    units: int
    """Rows, or pairs of rows, about which at least two authors said something."""
    same: float
    """Share of the units on which all their authors said the same."""
    measure: str
    value: float | None
    """None where it has no value: every answer is the same."""


def agreements(said: Iterable[Word]) -> list[Agreement]:
    """Agreement by key; of an author's several words about one unit the newest that stands counts."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for word in said:
        answer = _answer(word)
        if answer is not None and word.taken_back is None:
            unit, value = answer
            found.setdefault(word.key, {}).setdefault(unit, {})[word.author] = value
    return [one for key in COMPARED if (one := _agreement(key, list(found.get(key, {}).values())))]


def cohen_kappa(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Unweighted kappa of two authors' answers to the same N units; None where both always say one thing."""
    size = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / size
    one, other = Counter(first), Counter(second)
    chance = sum(one[value] * other[value] for value in one) / size**2
    return None if chance == 1 else float((observed - chance) / (1 - chance))


def krippendorff_alpha(units: Sequence[Answers], *, interval: bool) -> float | None:
    """Alpha of any number of authors; units with one answer do not count. None where all answers are equal.

    Args: interval: whether answers are numbers whose squared distance counts; else they are names.
    """
    pairable = [np.array(list(unit.values()), np.float64) for unit in units if len(unit) > 1]
    every = np.concatenate([np.zeros(0), *pairable])
    size = len(every)
    expected = _disagreement(every, interval=interval)
    if not expected:
        return None
    observed = sum(_disagreement(unit, interval=interval) / (len(unit) - 1) for unit in pairable)
    return float(1 - (size - 1) * observed / expected)


def _disagreement(values: np.ndarray, *, interval: bool) -> float:
    """Sum of the distances of all ordered pairs."""
    if interval:
        centred = values - values.mean() if len(values) else values
        return float(2 * len(values) * (centred**2).sum())
    _, counts = np.unique(values, return_counts=True)
    return float(len(values) ** 2 - (counts**2).sum())


def _agreement(key: str, units: Sequence[Answers]) -> Agreement | None:
    shared = [unit for unit in units if len(unit) > 1]
    if not shared:
        return None
    authors = tuple(sorted({author for unit in shared for author in unit}))
    same = sum(len(set(unit.values())) == 1 for unit in shared) / len(shared)
    if len(authors) == 2:
        first, second = ([unit[author] for unit in shared] for author in authors)
        return Agreement(key, authors, len(shared), same, "Cohen's kappa", cohen_kappa(first, second))
    alpha = krippendorff_alpha(shared, interval=key == FeedbackKey.SCORE)
    return Agreement(key, authors, len(shared), same, "Krippendorff's alpha", alpha)


def _answer(word: Word) -> tuple[str, float] | None:
    """Subject of a word, and its value as a number."""
    if word.key == FeedbackKey.PREFERRED and (partner := (word.text or "").split()):
        pair = sorted((word.experience_id, partner[0]))
        return " ".join(pair), float(pair.index(word.experience_id))
    if word.key in (FeedbackKey.THUMB, FeedbackKey.SCORE) and word.value is not None:
        return word.experience_id, word.value
    return None
