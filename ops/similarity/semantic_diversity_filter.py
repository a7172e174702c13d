"""`semantic_diversity_filter`: drops rollouts that mean what another one means."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowFilter, Judgement
from ops.lance.store import operator_store
from ops.members import Part, thinned, whole_rollouts
from ops.rewards.effective import effective_rewards
from ops.rollouts import ROLLOUT_COLUMNS
from ops.similarity.overlap import Bools, Ints, Similarities, farthest, keep_unlike
from ops.similarity.stored_vectors import StoredVectors
from rft_data.core.lookup import load
from rft_data.reading.search.models import load_embedder, unit_vectors

Vectors = npt.NDArray[np.float32]
_ROUNDING = 1e-6
"""Two equal texts may have a cosine of 1 - 1e-7."""


@OPERATORS.register_module("semantic_diversity_filter")
class SemanticDiversityFilter(ArrowFilter, Pipeline):
    """Thins out rollouts by the cosine similarity of their sentence embeddings.

    max_similarity: in order of `keep`, a rollout stays when its cosine with each that stays is below it (the
    greedy rule of DEITA, arXiv:2312.15685). keep_n: of each group the n that are farthest apart stay (greedy
    k-centre, arXiv:1708.00489), the first of the order among them.
    scope="group": within the group; the turns of one rollout are averaged. scope="store": with every rollout
    stored before it, kept or not, of the same task unless `across_tasks`; the vectors are those of
    `rft buffer search` (table `embeddings`), and the buffer's owner adds what is missing.
    An empty text is embedded like any other. A group of one stays.
    """

    group_key = GROUP_KEY
    optional_columns = (*ROLLOUT_COLUMNS, "shaped_reward")

    def __init__(
        self,
        model: str = "",
        max_similarity: float | None = None,
        keep_n: int | None = None,
        scope: Literal["group", "store"] = "group",
        keep: Literal["first", "best"] = "first",
        across_tasks: bool = False,
        buffer: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """model: folder or hub id of a sentence-transformers model, or `package.module:function` from texts
        to an [n, dim] array; it is loaded with the first batch (a hub id is fetched from the network).

        max_similarity: cosine in (0, 1]; keep_n: rollouts of a group (>= 1); exactly one of the two.
        keep: the first goes first (by member, else in row order), or the best rewarded (a missing one last).
        buffer: uri of the store, for scope="store" outside of a run.
        """
        super().__init__(*args, **kwargs)
        if not model:
            raise ValueError(
                "no model is given; wanted the folder or hub id of a sentence-transformers model"
            )
        _check_limits(max_similarity, keep_n)
        if scope not in ("group", "store") or keep not in ("first", "best"):
            raise ValueError(f"scope is {scope!r} and keep {keep!r}; wanted group|store and first|best")
        if scope == "store" and (keep == "best" or keep_n is not None):
            raise ValueError("scope 'store' goes with keep 'first' and max_similarity only")
        if scope == "group" and across_tasks:
            raise ValueError("across_tasks is for scope 'store': a group has one task")
        self.model = model
        self.max_similarity = max_similarity
        self.keep_n = keep_n
        self.scope = scope
        self.keep = keep
        self.across_tasks = across_tasks
        self.buffer = buffer
        self.needs_store = scope == "store"
        more = ("seq",) if scope == "store" else ("reward",) if keep == "best" else ()
        self.required_columns = (GROUP_KEY, "completion_text", *more)
        self._loaded: Any = None
        self._vectors: StoredVectors | None = None

    def judge(self, table: pa.Table) -> Judgement:
        """Keep the rollouts that differ enough.

        Raises: ValueError for a reward that is not finite (keep="best"); what loading the model raises.
        """
        if not table.num_rows:
            return Judgement(np.ones(0, np.bool_), [])
        return self._with_the_store(table) if self.scope == "store" else self._within_groups(table)

    def _within_groups(self, table: pa.Table) -> Judgement:
        vectors = unit_vectors(self._embedder(), table["completion_text"].to_pylist())
        preference = effective_rewards(table) if self.keep == "best" else None

        def judge(part: Part) -> tuple[Bools, Ints, Similarities]:
            cube = _means(vectors, part)
            cosine = cube @ cube.transpose(0, 2, 1)
            if self.keep_n is None:
                return *keep_unlike(cosine >= self._limit), cosine
            kept = farthest(cosine, part.first >= 0, self.keep_n)
            return kept, np.where(kept[:, None, :], cosine, -2.0).argmax(axis=2), cosine

        reason = "means what member {member} of its group means (cosine {similarity:.3f})"
        return thinned(table, preference, judge, reason)

    def _with_the_store(self, table: pa.Table) -> Judgement:
        if self._vectors is None:
            store = operator_store(self, "semantic_diversity_filter")
            self._vectors = StoredVectors(store, self.model, self._embedder())
        other, cosine = self._vectors.nearest_earlier(table, across_tasks=self.across_tasks)
        keep = whole_rollouts(table, cosine < self._limit)
        gone = np.flatnonzero(~keep)
        return Judgement(
            keep, [f"means what row {other[row]} means (cosine {cosine[row]:.3f})" for row in gone]
        )

    @property
    def _limit(self) -> float:
        return (1.0 if self.max_similarity is None else self.max_similarity) - _ROUNDING

    def _embedder(self) -> Any:
        if self._loaded is None:
            named = ":" in self.model
            self._loaded = load_embedder(load(self.model, "embedder") if named else self.model)
        return self._loaded


def _check_limits(max_similarity: float | None, keep_n: int | None) -> None:
    """Raises: ValueError unless exactly one is given, and sound."""
    given = f"max_similarity is {max_similarity} and keep_n {keep_n}"
    if (max_similarity is None) == (keep_n is None):
        raise ValueError(f"{given}; wanted exactly one of the two")
    if (max_similarity is not None and not 0 < max_similarity <= 1) or (keep_n is not None and keep_n < 1):
        raise ValueError(f"{given}; wanted (0, 1] and at least 1")


def _means(vectors: Vectors, part: Part) -> Vectors:
    """[G, M, dim]: each member's mean vector of its turns, of length one; zero where there is no member."""
    cube = np.zeros((*part.shape, vectors.shape[1]), np.float32)
    np.add.at(cube, (part.group, part.place), vectors[part.rows])
    length = np.linalg.norm(cube, axis=2, keepdims=True)
    cube /= np.where(length == 0, 1, length)
    return cube
