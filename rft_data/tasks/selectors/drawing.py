"""Uniform draws and best-of choices among places, at a cost that follows the number drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_ROUNDS = 6
"""Rounds of random tries before the whole pool is searched."""

Keep = Callable[[np.ndarray], np.ndarray]
"""Maps places to whether each may be drawn."""


def sample(pool: np.ndarray, n: int, keep: Keep, rng: np.random.Generator) -> list[int]:
    """n different places of a pool, uniformly among those `keep` allows; fewer if there are fewer.

    Tries at random first, so that a large pool costs as little as a small one while most of it is allowed.
    """
    found: dict[int, None] = {}
    if n <= len(pool) // 4:
        for _ in range(_ROUNDS):
            tried = pool[rng.integers(len(pool), size=2 * (n - len(found)) + 8)]
            for place in tried[keep(tried)].tolist():
                found[place] = None
                if len(found) == n:
                    return list(found)
    allowed = pool[keep(pool)]
    left = allowed[~np.isin(allowed, list(found))] if found else allowed
    return [*found, *rng.permutation(left)[: n - len(found)].tolist()]


def best(places: np.ndarray, scores: np.ndarray, n: int) -> list[int]:
    """The n places with the highest scores, best first; all of them when there are fewer."""
    if n < len(places):
        top = np.argpartition(-scores, n)[:n]
        places, scores = places[top], scores[top]
    found: list[int] = places[np.argsort(-scores, kind="stable")].tolist()
    return found
