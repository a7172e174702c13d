"""The result of a search, and the fusion of several rankings into one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

_RANK_CONSTANT = 60


@dataclass(frozen=True, slots=True)
class Hit:
    """One experience found."""

    seq: int
    score: float
    """Larger is better: BM25 for words, cosine in [-1, 1] for meaning; not comparable between the two."""


def fuse(rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """The k best of several rankings by reciprocal rank fusion (Cormack et al., SIGIR 2009).

    Score of a row: the sum over rankings of 1 / (60 + its place), places counted from 1.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for place, hit in enumerate(ranking, 1):
            scores[hit.seq] += 1 / (_RANK_CONSTANT + place)
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(seq, score) for seq, score in best[:k]]
