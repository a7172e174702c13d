"""A task's record: three lists with one entry per stored group of the task, and their sums.

Not counted are groups that failed, were cancelled or set aside, rollouts without a reward, experts'
solutions and evaluations.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.codec import one_array
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.filters import And, Compare, Filter
from rft_data.core.reader import TableReader
from rft_data.core.words import GroupOutcome, RowSource

PLAYED = pa.schema(
    [
        pa.field("played_age", pa.list_(pa.int64())),
        pa.field("played_passes", pa.list_(pa.float64())),
        pa.field("played_rollouts", pa.list_(pa.int64())),
    ]
)
"""One entry per group: optimizer steps since (0: the run's newest; null for imported rollouts), summed
rewards clipped to [0, 1], scored rollouts. A task that was never played has null lists."""

_KEY = ["taskset", "task_id"]
_ENTRY = {"age": "played_age", "passes": "played_passes", "rollouts": "played_rollouts"}


def played(store: TableReader, *, run_id: str | None = None, set_aside: Collection[str] = ()) -> pa.Table:
    """The record of every task that was ever played: `taskset`, `task_id` and the lists of PLAYED.

    Args:
        run_id: only this run's groups; None: those of every run, and imported rollouts; a group that was
            readmitted under another run id counts once.
        set_aside: groups that do not count (stale groups, or those of an interrupted step).
    """
    entries = _groups(store, run_id, set_aside)
    if run_id is None:
        entries = pa.concat_tables([entries, _imports(store)])
    lists = entries.group_by(_KEY, use_threads=False).aggregate([(name, "list") for name in _ENTRY])
    columns = {name: lists[name] for name in _KEY}
    for name, column in _ENTRY.items():
        columns[column] = lists[f"{name}_list"].cast(PLAYED.field(column).type)
    return pa.table(columns)


def tally(table: pa.Table, window: int | None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Passes and scored rollouts of each of N tasks, from the columns of PLAYED.

    Args: window: count only groups sampled by the weights of the last `window` optimizer steps; imported
        rollouts then do not count, because their weights are unknown. None: count everything.
    """
    lists = {field.name: one_array(table[field.name].cast(field.type)) for field in PLAYED}
    place = pc.list_parent_indices(lists["played_age"]).to_numpy()
    age = pc.fill_null(pc.list_flatten(lists["played_age"]), -1).to_numpy(zero_copy_only=False)
    counts = np.ones(len(age), bool) if window is None else (age >= 0) & (age < window)
    passes = pc.list_flatten(lists["played_passes"]).to_numpy(zero_copy_only=False)
    rollouts = pc.list_flatten(lists["played_rollouts"]).to_numpy(zero_copy_only=False)
    rows = table.num_rows
    return (
        np.bincount(place[counts], passes[counts], rows).astype(np.float64),
        np.bincount(place[counts], rollouts[counts], rows).astype(np.int64),
    )


def _groups(store: TableReader, run_id: str | None, set_aside: Collection[str]) -> pa.Table:
    """One entry for each group that arrived and has a scored rollout."""
    names = ["group_id", "run_id", *_KEY, "version_min", "rewards"]
    arrived: Filter = Compare("outcome", "eq", GroupOutcome.ARRIVED)
    if run_id is not None:
        arrived = And((arrived, Compare("run_id", "eq", run_id)))
    rows = store.read("groups", names, arrived)
    if run_id is None:
        rows = _first_of_each(rows, "group_id")
    if set_aside:
        gone = pc.is_in(rows["group_id"], value_set=pa.array(list(set_aside), pa.string()))
        rows = rows.filter(pc.invert(gone))
    passes, rollouts = _scored(one_array(rows["rewards"]), rows.num_rows)
    entries = {
        "age": pa.array(_ages(store, rows), pa.int64()),
        "passes": pa.array(passes, pa.float64()),
        "rollouts": pa.array(rollouts, pa.int64()),
    }
    table = pa.table({**{name: rows[name] for name in _KEY}, **entries})
    return table.filter(pa.array(rollouts > 0))


def _first_of_each(table: pa.Table, name: str) -> pa.Table:
    """The first row of each value of a column, in their order."""
    codes = one_array(table[name]).dictionary_encode().indices.to_numpy()
    return table.take(np.sort(np.unique(codes, return_index=True)[1]))


def _imports(store: TableReader) -> pa.Table:
    """One entry for each scored rollout that was imported."""
    rows = store.read("experiences", ["seq", *_KEY, "reward"], Compare("source", "eq", RowSource.IMPORT))
    rewarded = ShapedRewards(store).effective(rows)
    rows, rewarded = rows.filter(rewarded.is_valid()), rewarded.drop_null()
    rewards = rewarded.cast(pa.float64()).to_numpy()
    entries = {
        "age": pa.nulls(rows.num_rows, pa.int64()),
        "passes": pa.array(np.clip(rewards, 0.0, 1.0)),
        "rollouts": pa.array(np.ones(rows.num_rows, np.int64)),
    }
    return pa.table({**{name: rows[name] for name in _KEY}, **entries})


def _scored(rewards: pa.ListArray, rows: int) -> tuple[np.ndarray, npt.NDArray[np.intp]]:
    """Sum of clipped rewards, and number of known ones, of each group."""
    flat = pc.list_flatten(rewards)
    known = pc.is_valid(flat).to_numpy(zero_copy_only=False)
    place = pc.list_parent_indices(rewards).to_numpy()[known]
    values = flat.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
    return (
        np.bincount(place, np.clip(values, 0.0, 1.0), rows),
        np.bincount(place, minlength=rows),
    )


def _ages(store: TableReader, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Optimizer steps between each group's weights and those of the newest group of its run.

    Policy versions have gaps after restarts, so steps are counted instead. A version that is not in the
    table `versions` counts as the step of the same number.
    """
    known = store.read("versions", ["run_id", "version", "step"])
    place = pc.index_in(
        _run_versions(rows, "version_min"), value_set=one_array(_run_versions(known, "version"))
    )
    steps = pc.coalesce(known["step"].take(place), rows["version_min"]).to_numpy()
    runs = one_array(rows["run_id"]).dictionary_encode()
    codes = runs.indices.to_numpy()
    newest = np.full(len(runs.dictionary), np.iinfo(np.int64).min)
    np.maximum.at(newest, codes, steps)
    ages: npt.NDArray[np.int64] = newest[codes] - steps
    return ages


def _run_versions(table: pa.Table, version: str) -> pa.ChunkedArray:
    """(run_id, version) joined as one string."""
    return pc.binary_join_element_wise(table["run_id"], table[version].cast(pa.string()), "\x00")
