"""The effective reward of a row: `shaped_reward` where operators set one, else `reward`.

A row is stored with its `reward`, which never changes. Operators that judge, shape or fill in a reward write
`shaped_reward` into the row's annotation. Everything that decides by a reward reads the effective one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

REWARD, SHAPED_REWARD = "reward", "shaped_reward"


class TableReader(Protocol):
    """The method of a buffer that this module calls."""

    def read(self, name: str, columns: list[str]) -> pa.Table:
        """The rows of a table, in the order written."""
        ...


def effective_rewards(table: pa.Table) -> pa.ChunkedArray:
    """One value a row, null where it has neither; `table` may lack the column `shaped_reward`."""
    reward = table[REWARD]
    if SHAPED_REWARD not in table.column_names:
        return reward
    shaped = table[SHAPED_REWARD]
    if shaped.type != reward.type:  # as when Data-Juicer hands over Python values
        reward, shaped = reward.cast(pa.float64()), shaped.cast(pa.float64())
    return pc.coalesce(shaped, reward)


class ShapedRewards:
    """The `shaped_reward` of the newest annotation on each stored row, as they were when this was made."""

    def __init__(self, store: TableReader) -> None:
        """Read the annotations of a buffer, by whichever operators they were made."""
        found = store.read("annotations", ["seq", SHAPED_REWARD])
        found = found.filter(pc.greater_equal(found["seq"], 0))
        seqs = found["seq"].to_numpy()
        self._by_seq = np.full(int(seqs.max(initial=-1)) + 1, np.nan, np.float32)
        self._by_seq[seqs] = found[SHAPED_REWARD].to_numpy()  # of a number given twice the last stays

    def effective(self, rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray:
        """The effective rewards of stored rows, of which `seq` and `reward` are read."""
        seqs = rows.column("seq").to_numpy()
        known = seqs < len(self._by_seq)
        shaped = np.full(len(seqs), np.nan, np.float32)
        shaped[known] = self._by_seq[seqs[known]]
        columns = {REWARD: rows.column(REWARD), SHAPED_REWARD: pa.array(shaped, mask=np.isnan(shaped))}
        return effective_rewards(pa.table(columns))

    def counted(self, rows: pa.Table) -> pa.Table:
        """Stored rows with their effective rewards in the column `reward`."""
        place = rows.schema.get_field_index(REWARD)
        return rows.set_column(place, rows.schema.field(place), self.effective(rows))
