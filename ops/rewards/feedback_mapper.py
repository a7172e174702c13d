"""`feedback_mapper`: joins later feedback on an experience (a delayed reward, a score) to its row."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper, append_or_replace, floats
from ops.lance.store import operator_store
from rft_data.core.codec import one_array
from rft_data.core.words import FeedbackKey
from rft_data.exchange.feedback import How, feedback_about, fold

Into = Literal["reward", "shaped_reward", "stats"]


@OPERATORS.register_module("feedback_mapper")
class FeedbackMapper(ArrowMapper, Mapper):
    """Adds `feedback_<key>`, a float, null without feedback, and with `into` fills another column from it.

    Of several values about one row `how` makes one: the last, the mean over authors of each one's last, or
    the sum (see `rft_data.exchange.feedback.fold`). into="reward" fills rewards that are missing, and clears
    `unscored_reason` there; "shaped_reward" does the same for that column, which it adds; "stats" leaves
    both alone. With `replace`, feedback also replaces a value that is there. Operators after this one
    see the new reward; the stored row does not change. Put it first in the list. Each row is
    handled alone: a group of one or an empty text makes no difference.
    Raises ValueError for a stored reward that is not finite.
    """

    needs_store = True
    required_columns = ("experience_id", "reward")
    optional_columns = ("shaped_reward", "unscored_reason")

    def __init__(
        self,
        key: str = FeedbackKey.REWARD,
        how: How = "last",
        into: Into = "reward",
        replace: bool = False,
        buffer: str | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        """key: of the feedback; buffer: uri of the buffer that holds it, for dj-process only."""
        super().__init__(*args, **kwargs)
        if not key or how not in get_args(How) or into not in get_args(Into):
            raise ValueError(
                f"key is {key!r}, how {how!r} and into {into!r}; wanted a key, how one of "
                f"{', '.join(get_args(How))}, into one of {', '.join(get_args(Into))}"
            )
        self.key = key
        self.how: How = how
        self.into: Into = into
        self.replace = replace
        self.buffer = buffer

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the feedback column and fill the column `into`."""
        ids = table["experience_id"]
        store = operator_store(self, "feedback_mapper")
        feedback = feedback_about(store, self.key, ids.to_pylist())
        values = fold(feedback, self.how).values_for(ids)
        table = append_or_replace(table, f"feedback_{self.key}", _nullable(values, pa.float64()))
        if self.into == "stats":
            return table
        there = self.into in table.column_names
        before = floats(table, self.into) if there else np.full(table.num_rows, np.nan)
        filled = ~np.isnan(values) & (np.isnan(before) | self.replace)
        kind = table.schema.field(self.into).type if there else pa.float32()
        kind = pa.float32() if pa.types.is_null(kind) else kind
        table = append_or_replace(table, self.into, _nullable(np.where(filled, values, before), kind))
        if self.into == "reward" and "unscored_reason" in table.column_names:
            why = one_array(table["unscored_reason"])
            table = append_or_replace(table, "unscored_reason", _cleared(why, filled))
        return table


def _nullable(values: npt.NDArray[np.float64], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values)).cast(kind)


def _cleared(column: pa.Array, filled: npt.NDArray[np.bool_]) -> pa.Array:
    """`column`, null where `filled`."""
    places = np.arange(len(column))
    return column.take(pa.array(places, mask=filled))
