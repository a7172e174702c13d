"""`repetition_filter`: drops rollouts that repeat themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Filter

from ops.base import ArrowFilter, Judgement
from ops.similarity.shingles import BLOCK_ROWS, blocks, first_of_runs, shingles

_HASH_BITS = 63 - BLOCK_ROWS.bit_length()


@OPERATORS.register_module("repetition_filter")
class RepetitionFilter(ArrowFilter, Filter):
    """Drops a row when the share of its n-grams that are repeats is above `max_share`.

    share = 1 - distinct n-grams / n-grams (seq-rep-n of arXiv:1908.04319, the repetition penalty of
    arXiv:2502.03373). N-grams are of words, or of completion tokens with `column: token_ids`. An empty text
    and one of at most n pieces have share 0 and stay. Each row is judged alone, so groups may become
    ragged; in our pipeline the other turns of a row's rollout go with it.
    """

    optional_columns = ("prompt_length",)

    def __init__(
        self,
        n: int = 4,
        max_share: float = 0.5,
        column: str = "completion_text",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """n: pieces in an n-gram (>= 1); max_share: largest share that stays, in [0, 1).

        column: a text column, or a column of token lists.
        """
        super().__init__(*args, **kwargs)
        if n < 1 or not 0 <= max_share < 1:
            raise ValueError(f"n is {n} and max_share {max_share}; wanted n >= 1 and max_share in [0, 1)")
        self.n = n
        self.max_share = max_share
        self.column = column
        self.required_columns = (column,)

    def judge(self, table: pa.Table) -> Judgement:
        """Keep the rows that repeat themselves little enough."""
        parts = [repeated_share(part, self.column, self.n) for part in blocks(table, self.column)]
        shares = np.concatenate(parts) if parts else np.zeros(0)
        keep = shares <= self.max_share
        reasons = [
            f"{share:.3g} of its {self.n}-grams are repeats, above {self.max_share:.3g}"
            for share in shares[~keep]
        ]
        return Judgement(keep, reasons)


def repeated_share(table: pa.Table, column: str, n: int) -> npt.NDArray[np.float64]:
    """The share of each row's n-grams that came before in the row, in [0, 1); at most BLOCK_ROWS rows."""
    found = shingles(table, column, n)
    keys = found.hashes >> np.uint64(64 - _HASH_BITS)
    keys |= found.by_row(np.arange(table.num_rows) << _HASH_BITS)
    keys.sort()
    new = first_of_runs(keys)
    some = found.counts > 0
    starts = (np.cumsum(found.counts) - found.counts)[some]
    shares = np.zeros(table.num_rows)
    shares[some] = 1 - np.add.reduceat(new, starts, dtype=np.int64) / found.counts[some] if some.any() else 0
    return shares
