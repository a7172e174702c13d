"""`rollout_near_dup_deduplicator`: drops rollouts whose text is nearly that of another one."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowFilter, Judgement
from ops.lance.store import operator_store
from ops.members import Part, numbers, thinned, whole_rollouts
from ops.rewards.effective import effective_rewards
from ops.rollouts import ROLLOUT_COLUMNS
from ops.similarity.fingerprints import Fingerprints, task_labels
from ops.similarity.overlap import Bools, Ints, Similarities, jaccard, keep_unlike
from ops.similarity.shingles import blocks, shingles
from ops.similarity.sketches import SketchIndex, sketches

Floats = npt.NDArray[np.float64]


@OPERATORS.register_module("rollout_near_dup_deduplicator")
class RolloutNearDupDeduplicator(ArrowFilter, Pipeline):
    """Drops a rollout whose set of n-grams has a Jaccard similarity >= `threshold` with one that stays.

    scope="group": among the rollouts of a group, exactly. scope="batch": among all rows handed over;
    scope="store": with every rollout stored before it, kept or not. Both by MinHash (`sketches.py`,
    standard error 0.035 at 0.8), and among rollouts of one task unless `across_tasks`.
    Turns of one rollout are compared as one in a group; elsewhere it goes when all its turns are repeats.
    A row without words (or tokens) is never a duplicate. A group of one stays.
    """

    group_key = GROUP_KEY

    def __init__(
        self,
        threshold: float = 0.8,
        n: int = 3,
        scope: Literal["group", "batch", "store"] = "group",
        keep: Literal["first", "best"] = "first",
        across_tasks: bool = False,
        column: str = "completion_text",
        buffer: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """threshold: in (0, 1]; n: pieces in an n-gram; column: a text column or one of token lists.

        keep: of near-duplicates the first stays (by member, else in row order), or the best rewarded (a
        missing reward comes last; not with scope="store": what was stored before has long been used).
        buffer: uri of the store, for scope="store" outside of a run.
        """
        super().__init__(*args, **kwargs)
        if not 0 < threshold <= 1 or n < 1:
            raise ValueError(f"threshold is {threshold} and n {n}; wanted threshold in (0, 1] and n >= 1")
        if scope not in ("group", "batch", "store") or keep not in ("first", "best"):
            raise ValueError(f"scope is {scope!r} and keep {keep!r}; wanted group|batch|store and first|best")
        if scope == "store" and keep == "best":
            raise ValueError("keep 'best' cannot be with scope 'store': a row used before cannot be dropped")
        if scope == "group" and across_tasks:
            raise ValueError("across_tasks is for scope 'batch' and 'store': a group has one task")
        self.threshold = threshold
        self.n = n
        self.scope = scope
        self.keep = keep
        self.across_tasks = across_tasks
        self.column = column
        self.buffer = buffer
        self._fingerprints: Fingerprints | None = None
        self._declare()

    def _declare(self) -> None:
        """Set the columns that it reads, which depend on the arguments."""
        self.whole_batch = self.scope == "batch"
        self.needs_store = self.scope == "store"
        needed = {
            "group": (GROUP_KEY, self.column),
            "batch": (self.column,) if self.across_tasks else (self.column, "taskset", "task_id"),
            "store": (GROUP_KEY, "seq"),
        }[self.scope]
        self.required_columns = (*needed, "reward") if self.keep == "best" else needed
        self.optional_columns = (GROUP_KEY, "seq", *ROLLOUT_COLUMNS, "prompt_length", "shaped_reward")

    def judge(self, table: pa.Table) -> Judgement:
        """Keep the rollouts that repeat none which stays.

        Raises: ValueError for a reward that is not finite (keep="best"), or a column of neither kind.
        """
        if self.scope == "group":
            return self._within_groups(table)
        if self.scope == "batch":
            like, similarity = self._within_batch(table)
        else:
            like, similarity = self._with_the_store(table)
        keep = whole_rollouts(table, like < 0)
        what = "row" if "seq" in table.column_names else "row of the batch"
        gone = np.flatnonzero(~keep)
        return Judgement(
            keep, [f"repeats {what} {like[row]} (similarity {similarity[row]:.2f})" for row in gone]
        )

    def _within_groups(self, table: pa.Table) -> Judgement:
        def judge(part: Part) -> tuple[Bools, Ints, Similarities]:
            found = shingles(self._read(table, part.rows), self.column, self.n)
            similarity = jaccard(found, part.group, part.place, part.shape)
            return *keep_unlike(similarity >= np.float32(self.threshold)), similarity

        reason = "repeats member {member} of its group (similarity {similarity:.2f})"
        return thinned(table, self._preference(table), judge, reason)

    def _within_batch(self, table: pa.Table) -> tuple[Ints, Floats]:
        """By row: the number of the row it repeats, or -1; and how similar the two are."""
        preference = self._preference(table)
        order = np.arange(table.num_rows)
        if preference is not None:
            order = np.argsort(np.where(np.isnan(preference), np.inf, -preference), kind="stable")
        rows = self._read(table, order)
        labels = np.zeros(len(order), np.uint64) if self.across_tasks else task_labels(rows)
        index, place, similarity = SketchIndex(self.threshold), np.full(len(order), -1), np.zeros(len(order))
        start = 0
        for part in blocks(rows, self.column):
            found = shingles(part, self.column, self.n)
            some = np.flatnonzero(found.counts)
            place[start + some], similarity[start + some] = index.admit(
                sketches(found)[some], labels[start + some]
            )
            start += part.num_rows
        asked = np.flatnonzero(place >= 0)
        owner = asked[np.unique(place[asked], return_index=True)[1]]  # by place: who was admitted there
        repeats = asked[owner[place[asked]] != asked]
        like, alike = np.full(len(order), -1), np.zeros(len(order))
        like[order[repeats]] = numbers(table, "seq")[order[owner[place[repeats]]]]
        alike[order[repeats]] = similarity[repeats]
        return like, alike

    def _with_the_store(self, table: pa.Table) -> tuple[Ints, Floats]:
        """By row: the stored row it repeats, or -1; and how similar the two are."""
        if self._fingerprints is None:
            self._fingerprints = Fingerprints(
                operator_store(self, "rollout_near_dup_deduplicator"),
                column=self.column,
                n=self.n,
                threshold=self.threshold,
                across_tasks=self.across_tasks,
            )
        seqs = table["seq"].to_numpy()
        original, similarity = self._fingerprints.verdicts(seqs)
        return np.where(original == seqs, -1, original), similarity.astype(np.float64)

    def _preference(self, table: pa.Table) -> Floats | None:
        return effective_rewards(table) if self.keep == "best" else None

    def _read(self, table: pa.Table, rows: Ints) -> pa.Table:
        names = {self.column, "prompt_length", "taskset", "task_id"} & set(table.column_names)
        return table.select(sorted(names)).take(rows)
