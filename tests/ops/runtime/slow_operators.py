"""Operators for the tests of workers, in a module that worker processes can import."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper, Pipeline

from ops.base import ArrowFilter, ArrowMapper, Judgement, append_or_replace


@OPERATORS.register_module("told_by_text_mapper")
class ToldByText(ArrowMapper, Mapper):
    """Hangs, dies or fails on a row whose text says so; else writes its process id."""

    required_columns = ("completion_text",)

    def process_table(self, table: pa.Table) -> pa.Table:
        texts = table["completion_text"].to_pylist()
        if "hang" in texts:
            time.sleep(600)
        if "die" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        if "fail" in texts:
            raise KeyError("told to")
        return append_or_replace(table, "pid", pa.array([os.getpid()] * table.num_rows))


@OPERATORS.register_module("first_of_group_filter")
class FirstOfGroup(ArrowFilter, Pipeline):
    """Keeps the first row of each group: wrong if a group were split."""

    group_key = "group_id"
    required_columns = ("group_id",)

    def judge(self, table: pa.Table) -> Judgement:
        groups = table["group_id"].to_pylist()
        keep = np.array([group not in groups[:row] for row, group in enumerate(groups)])
        return Judgement(
            keep, [f"behind the first of {g}" for g, k in zip(groups, keep, strict=True) if not k]
        )


@OPERATORS.register_module("breaks_contract_mapper")
class BreaksContract(ArrowMapper, Mapper):
    """Loses a row."""

    def process_table(self, table: pa.Table) -> pa.Table:
        return table.slice(1)
