"""An operator that tests name by this file, which is on no path."""

import os

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper, append_or_replace


@OPERATORS.register_module("pid_mapper")
class PidMapper(ArrowMapper, Mapper):
    """Writes the id of the process it runs in."""

    def process_table(self, table: pa.Table) -> pa.Table:
        return append_or_replace(table, "pid", pa.array([os.getpid()] * table.num_rows))
