"""Kinds of tasks that share statistics: (taskset, offline difficulty), or clusters of embeddings.

Tasks usually outnumber visits, so most of what is known about a task comes from others of its category.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.tasks.selectors.drawing import Keep, sample
from rft_data.tasks.selectors.roster import Roster

_LEVELS = 16
"""A taskset with more distinct difficulties than this is cut into as many quantiles."""
_FITTED = 20_000
"""At most so many vectors are used to fit k-means; the others join the nearest centre."""
_ROUNDS = 25


class Categories:
    """The category of each place, and the places of each category.

    Codes count up from 0 in order of first appearance, so tasks that are added never change a code.
    """

    def __init__(self, names: Sequence[str], codes: np.ndarray) -> None:
        """`codes`: index into `names` by place."""
        self.names = list(names)
        self.codes = codes.astype(np.int32)
        self._members = np.argsort(self.codes, kind="stable").astype(np.int32)
        self._starts = np.searchsorted(self.codes[self._members], np.arange(len(names) + 1))

    def __len__(self) -> int:
        return len(self.names)

    def members(self, code: int) -> np.ndarray:
        """The places of a category."""
        return self._members[self._starts[code] : self._starts[code + 1]]

    def sample(self, code: int, n: int, keep: Keep, rng: np.random.Generator) -> list[int]:
        """n different places of a category, uniformly among those `keep` allows; fewer if there are fewer."""
        return sample(self.members(code), n, keep, rng)


def by_difficulty(roster: Roster) -> Categories:
    """One category for each (taskset, difficulty); many difficulties are cut at quantiles of the first tasks.

    A task without a difficulty is in its taskset's category `None`.
    """
    edges = _quantile_edges(roster.tasks[: roster.base])
    codes = np.empty(len(roster), np.int32)
    known: dict[tuple[str, object], int] = {}
    for place, task in enumerate(roster.tasks):
        level: object = task.difficulty
        if task.difficulty is not None and task.taskset in edges:
            level = f"quantile {int(np.searchsorted(edges[task.taskset], task.difficulty)) + 1}"
        codes[place] = known.setdefault((task.taskset, level), len(known))
    return Categories([f"{taskset}/{level}" for taskset, level in known], codes)


def by_embedding(roster: Roster, field: str, clusters: int, seed: int) -> Categories:
    """k-means clusters, within each taskset, of the vectors that the tasks' metadata holds under `field`.

    The centres are those of the first tasks; an added task joins the nearest. They are not saved: a run that
    is resumed finds the same ones from the seed.
    Raises: RecipeError when a task has no such vector, or vectors differ in length; MissingExtraError.
    """
    vectors = _vectors(roster.tasks, field)
    codes = np.empty(len(roster), np.int32)
    names: list[str] = []
    for code, taskset in enumerate(roster.tasksets):
        mine = np.flatnonzero(roster.taskset == code)
        first = mine[mine < roster.base]
        centres = _centres(vectors[first if len(first) else mine], clusters, seed)
        nearest, _ = _k_means().vq(vectors[mine], centres)
        codes[mine] = len(names) + nearest
        names += [f"{taskset}/cluster {i + 1}" for i in range(len(centres))]
    return Categories(names, codes)


def _centres(vectors: np.ndarray, k: int, seed: int) -> np.ndarray:
    """At most k centres (float32, one row each); fewer when fewer vectors differ."""
    rng = np.random.default_rng(seed)
    if len(vectors) > _FITTED:
        vectors = vectors[rng.choice(len(vectors), _FITTED, replace=False)]
    k = min(k, len(np.unique(vectors, axis=0)))  # k-means++ finds no further seed among equal vectors
    centres, _ = _k_means().kmeans2(vectors, k, _ROUNDS, minit="++", rng=rng)
    return np.asarray(centres, np.float32)


def _k_means() -> ModuleType:
    return need("scipy.cluster.vq", "train", "a selector with 'embedding'")


def _quantile_edges(tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    levels: dict[str, list[float]] = {}
    for task in tasks:
        if task.difficulty is not None:
            levels.setdefault(task.taskset, []).append(task.difficulty)
    shares = np.arange(1, _LEVELS) / _LEVELS
    return {
        taskset: np.unique(np.quantile(found, shares))
        for taskset, found in levels.items()
        if len(set(found)) > _LEVELS
    }


def _vectors(tasks: Sequence[Task], field: str) -> np.ndarray:
    found = [task.metadata.get(field) for task in tasks]
    lengths = {len(v) if isinstance(v, Sequence) and not isinstance(v, str) else 0 for v in found}
    if len(lengths) > 1 or 0 in lengths:
        raise RecipeError(
            f"tasks need a vector of one length in their metadata under '{field}', found lengths "
            f"{sorted(lengths)}; embed every task, or leave 'embedding' out."
        )
    return np.array(found, np.float32)
