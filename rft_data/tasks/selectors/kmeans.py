"""k-means (Lloyd's algorithm with k-means++ seeding), for clusters of task embeddings."""

from __future__ import annotations

import numpy as np

_SAMPLE = 20_000
"""Vectors the centres are fitted to."""
_ROUNDS = 25
_CHUNK = 65_536


def centres_of(vectors: np.ndarray, k: int, seed: int) -> np.ndarray:
    """At most k centres (float32, one row each) of vectors (N, d); fewer when there are fewer vectors."""
    rng = np.random.default_rng(seed)
    if len(vectors) > _SAMPLE:
        vectors = vectors[rng.choice(len(vectors), _SAMPLE, replace=False)]
    centres = _spread(vectors, min(k, len(vectors)), rng)
    for _ in range(_ROUNDS):
        code = nearest(vectors, centres)
        counts = np.bincount(code, minlength=len(centres))
        sums = np.zeros(centres.shape)
        np.add.at(sums, code, vectors)
        filled = counts > 0
        moved = centres.copy()
        moved[filled] = sums[filled] / counts[filled, None]
        if np.allclose(moved, centres, atol=1e-6):
            break
        centres = moved
    return centres


def nearest(vectors: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Index of the nearest centre (Euclidean) of each vector, int32."""
    squares = (centres * centres).sum(axis=1)
    parts = [vectors[at : at + _CHUNK] for at in range(0, len(vectors), _CHUNK)]
    codes = [np.argmin(squares - 2 * part @ centres.T, axis=1) for part in parts]
    return np.concatenate(codes).astype(np.int32) if codes else np.empty(0, np.int32)


def _spread(vectors: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++: each next centre with probability proportional to its squared distance to the nearest."""
    centres = [vectors[rng.integers(len(vectors))]]
    distance = ((vectors - centres[0]) ** 2).sum(axis=1, dtype=np.float64)
    while len(centres) < k and distance.sum() > 0:
        centres.append(vectors[rng.choice(len(vectors), p=distance / distance.sum())])
        distance = np.minimum(distance, ((vectors - centres[-1]) ** 2).sum(axis=1, dtype=np.float64))
    return np.array(centres, np.float32)
