"""`truncation_mask_mapper`: keeps truncated completions out of the loss (DAPO overlong filtering)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper, append_or_replace
from rft_data.core.words import FinishReason


@OPERATORS.register_module("truncation_mask_mapper")
class TruncationMaskMapper(ArrowMapper, Mapper):
    """Sets `masked` where `finish_reason` is "length" (DAPO, arXiv:2503.14476, section 3.4).

    A masked row keeps its place in its group's statistics and in the batch; none of its tokens enters
    the loss. What another operator masked stays masked. A row that was not sampled (empty or null
    finish_reason) is not truncated. TRL's `mask_truncated_completions` is the same rule.
    """

    required_columns = ("finish_reason",)
    optional_columns = ("masked",)

    def __init__(self, *args: object, **kwargs: object) -> None:
        """No arguments of its own."""
        super().__init__(*args, **kwargs)

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add `masked`, never null."""
        masked = pc.fill_null(pc.equal(table["finish_reason"], FinishReason.LENGTH), False)
        if "masked" in table.column_names:
            masked = pc.or_(masked, pc.fill_null(table["masked"].cast(pa.bool_()), False))
        return append_or_replace(table, "masked", masked)
